"""An operator who is never content: moves by both protocols, other plans, cancels, drains, fills, pins, auto on or off.

The seed decides what is asked for as far as it can: what may be asked depends on who owns what at the moment.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Final

from tests.soak.layout import PARTITIONS, WORKERS
from tests.soak.ledger import Ledger
from tests.soak.rest import Answer, Away, Rest

PAUSE_S: Final = (0.2, 2.5)
LOOK_EVERY_S: Final = 1.0
PLANS: Final = ("((A B) C)", "((A C) B)", "((B C) A)", "(A B C)")
QUICK: Final = {"cool_down_s": 3.0, "min_batches": 2, "start_ratio": 1.1, "stop_ratio": 1.05, "min_gain": 0.01}
"""Automatic balancing that acts within seconds."""
WEIGHTS: Final = {
    "move": 10,
    "amount": 3,
    "level": 2,
    "pairwise": 1,
    "drain": 2,
    "fill": 2,
    "cancel": 5,
    "replan": 6,
    "best-plan": 2,
    "cancel-replan": 2,
    "auto-on": 2,
    "auto-off": 2,
    "pin": 1,
    "unpin": 2,
}
Json = dict[str, Any]


class Operator(threading.Thread):
    def __init__(self, rest: Rest, ledger: Ledger, seed: int) -> None:
        super().__init__(name="soak-operator", daemon=True)
        self._rest = rest
        self._ledger = ledger
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._looked_at = 0.0
        self._open: list[str] = []
        self._open_replans: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(self._rng.uniform(*PAUSE_S)):
                try:
                    self.look()
                    self._act()
                except Away:
                    self._ledger.ask("any", "nobody answers")
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()
        if self.error is not None:
            raise self.error

    def calm(self) -> bool:
        """Nothing is to be begun any more; False where nobody takes the order now."""
        try:
            orders = [self._rest.ask("PUT", "/auto", {"enabled": False, "plans": False})]
            orders.append(self._rest.ask("PUT", "/rules", {"pinned": [], "excluded": []}))
        except Away:
            return False
        return all(answer.good for answer in orders)

    def look(self, limit: int = 100) -> list[Json] | None:
        """Write down what Redis may forget; the migrations that are open, or None where the query is not known."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return None
        answer = self._rest.get("/migrations", limit=limit)
        if not answer.good:
            return None
        self._looked_at = time.monotonic()
        migrations: list[Json] = answer.body["migrations"]
        replans = self._rest.get("/replans", limit=limit)
        if replans.good:
            self._ledger.see_replans(replans.body["replans"])
            self._open_replans = [str(view["id"]) for view in replans.body["replans"] if view["open"]]
        self._ledger.see(migrations)
        still_open = [view for view in migrations if not view["outcome"]]
        self._open = [str(view["id"]) for view in still_open]
        return still_open

    def open_rebalances(self) -> list[str] | None:
        answer = self._rest.get("/rebalances", limit=1000)
        if not answer.good:
            return None
        return [f"rebalance {each['id']} {each['state']}" for each in answer.body["rebalances"] if each["open"]]

    def open_replans(self) -> list[str] | None:
        answer = self._rest.get("/replans", limit=1000)
        if not answer.good:
            return None
        self._ledger.see_replans(answer.body["replans"])
        return [f"replan {each['id']} {each['state']}" for each in answer.body["replans"] if each["open"]]

    def _act(self) -> None:
        (what,) = self._rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        answer = getattr(self, "_" + what.replace("-", "_"))()
        if answer is not None:
            self._ledger.ask(what, answer.words)

    def _strategy(self) -> Json:
        manner: Json = {"strategy": self._rng.choice(["mslb", "ptlb", "auto"])}
        if self._rng.random() < 0.3:
            manner["max_pause"] = self._rng.choice(["20ms", "200ms", "2s"])
        return manner

    def _pair(self) -> tuple[int, int]:
        sender, receiver = self._rng.sample(range(WORKERS), 2)
        return sender, receiver

    def _move(self) -> Answer | None:
        sender, receiver = self._pair()
        answer = self._rest.get("/partitions")
        if not answer.good:
            return answer
        owned = [each["partition"] for each in answer.body["partitions"] if each["owner"] == sender]
        if not owned:
            return None
        groups = sorted(self._rng.sample(owned, min(len(owned), self._rng.randint(1, 4))))
        return self._rebalance({"from": sender, "to": receiver, "groups": groups, **self._strategy()})

    def _amount(self) -> Answer:
        sender, receiver = self._pair()
        share = f"{self._rng.randint(5, 100)}%"
        measure = self._rng.choice(["cpu", "bytes"])
        return self._rebalance(
            {"from": sender, "to": receiver, "amount": share, "measure": measure, **self._strategy()}
        )

    def _level(self) -> Answer:
        return self._rebalance({"policy": "level", **self._strategy()})

    def _pairwise(self) -> Answer:
        return self._rebalance({"policy": "pairwise", **self._strategy()})

    def _rebalance(self, body: Json) -> Answer:
        return self._rest.ask("POST", "/rebalances", {**body, "reason": "soak"})

    def _drain(self) -> Answer:
        return self._rest.ask("POST", "/drain", {"worker": self._rng.randrange(WORKERS), **self._strategy()})

    def _fill(self) -> Answer:
        return self._rest.ask("POST", "/fill", {"worker": self._rng.randrange(WORKERS), **self._strategy()})

    def _cancel(self) -> Answer | None:
        if not self._open:
            return None
        name = self._rng.choice(self._open)
        return self._rest.ask("POST", f"/migrations/{name}/cancel", {"reason": "soak"})

    def _replan(self) -> Answer:
        body = {
            "worker": self._rng.randrange(WORKERS),
            "plan": self._rng.choice(PLANS),
            "strategy": self._rng.choice(["ms", "hybmig", "auto"]),
            "budget": self._rng.choice(["1ms", "20ms", "200ms"]),
        }
        return self._rest.ask("POST", "/replans", {**body, "reason": "soak"})

    def _best_plan(self) -> Answer:
        return self._rest.ask("POST", "/replans", {"worker": self._rng.randrange(WORKERS), "reason": "soak"})

    def _cancel_replan(self) -> Answer | None:
        if not self._open_replans:
            return None
        name = self._rng.choice(self._open_replans)
        return self._rest.ask("POST", f"/replans/{name}/cancel", {"reason": "soak"})

    def _auto_on(self) -> Answer:
        return self._rest.ask("PUT", "/auto", {"enabled": True, "plans": self._rng.random() < 0.5, **QUICK})

    def _auto_off(self) -> Answer:
        return self._rest.ask("PUT", "/auto", {"enabled": False, "plans": False})

    def _pin(self) -> Answer:
        pinned = sorted(self._rng.sample(range(PARTITIONS), 3))
        excluded = [self._rng.randrange(WORKERS)] if self._rng.random() < 0.3 else []
        return self._rest.ask("PUT", "/rules", {"pinned": pinned, "excluded": excluded})

    def _unpin(self) -> Answer:
        return self._rest.ask("PUT", "/rules", {"pinned": [], "excluded": []})
