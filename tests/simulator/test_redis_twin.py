"""The Redis in memory does what a real server does with Trimtab's scripts."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import pytest
import redis

from manager.journal import PUBLISH_AS_LEADER, WRITE
from manager.lease import ACQUIRE, RELEASE, RENEW
from manager.requests import ENQUEUE
from tests.simulator.clients import BlockingClient, Network
from tests.simulator.clock import VirtualClock
from tests.simulator.redis_scripts import SCRIPTS
from tests.simulator.redis_server import SimRedis
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import Epoch, first_epoch
from trimtab.store import PUBLISH, REPORT, RESTORE, publish_arguments

pytestmark = pytest.mark.redis
QUERY = "q"
CALLS = 120
OPERATIONS = (
    "migration",
    "rebalance",
    "replan",
    "closed",
    "request",
    "event",
    "alarm",
    "snapshot",
    "planning",
    "decision",
    "batch",
    "fine",
    "coarse",
    "forecast",
    "measured",
)


class Twins:
    """The same calls on both servers."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = Random(seed)
        self.real: Any = redis.Redis.from_url(url, decode_responses=True)
        self.real.flushall()
        self.sim = SimRedis(VirtualClock())
        self.client = BlockingClient(Network(self.sim))
        self.calls = 0
        self.holders = ["a 1", "b 2"]
        self.epochs = [first_epoch(QUERY, "life", (0, 1))]

    def call(self, script: str, keys: list[str], *arguments: object, newest: int = -1) -> None:
        """`newest`: at which argument each server's own newest event id is to stand, if at any."""
        answers = []
        for server in (self.real, self.client):
            given = [str(each) for each in arguments]
            if newest >= 0:
                last = server.xrevrange(redis_keys.events(QUERY), count=1)
                given[newest] = last[0][0] if last else "0-0"
            try:
                answers.append(str(server.eval(script, len(keys), *keys, *given)))
            except redis.ResponseError as error:
                answers.append(str(error).split()[0])
        first, second = answers
        assert first == second or (script == WRITE and "-" in first and "-" in second), (script, arguments)
        self.calls += 1
        if self.calls % 4 == 0:
            assert self.dump_of_real() == self.dump_of_sim(), (script, arguments)

    def dump_of_real(self) -> dict[str, Any]:
        read = {
            "string": self.real.get,
            "hash": self.real.hgetall,
            "list": lambda key: self.real.lrange(key, 0, -1),
            "set": self.real.smembers,
            "zset": lambda key: dict(self.real.zrange(key, 0, -1, withscores=True)),
            "stream": lambda key: [fields for _, fields in self.real.xrange(key)],
        }
        return {key: (read[self.real.type(key)](key), self.real.pttl(key) > 0) for key in sorted(self.real.keys())}

    def dump_of_sim(self) -> dict[str, Any]:
        found = {}
        for key, value in self.sim.dump().items():
            entries = [fields for _, fields in value] if key == redis_keys.events(QUERY) else value
            found[key] = (entries, key in self.sim._ends_ms)
        return found

    # -- random calls

    def lease(self) -> None:
        random = self.random
        keys = [redis_keys.lease(QUERY), redis_keys.fence(QUERY)]
        choice = random.randrange(3)
        if choice == 0:
            holder = random.choice("ab")
            self.call(ACQUIRE, keys, holder, 60_000, random.randrange(3))
            value = self.sim.get(keys[0])
            assert value is not None
            self.holders.append(value)
        elif choice == 1:
            self.call(RENEW, keys[:1], self.holder(), 60_000)
        else:
            self.call(RELEASE, keys[:1], self.holder())

    def holder(self) -> str:
        return self.random.choice([*self.holders[-2:], self.sim.get(redis_keys.lease(QUERY)) or "nobody 0"])

    def write(self) -> None:
        random = self.random
        keys = [
            each(QUERY)
            for each in (
                redis_keys.lease,
                redis_keys.migrations,
                redis_keys.rebalances,
                redis_keys.closed,
                redis_keys.requests,
                redis_keys.events,
                redis_keys.alarms,
                redis_keys.snapshot,
                redis_keys.decision,
                redis_keys.batches,
                partial(redis_keys.history, step_s=10),
                partial(redis_keys.history, step_s=60),
                redis_keys.outcomes,
                redis_keys.replans,
                redis_keys.planning,
            )
        ]
        operations: list[str] = []
        for _ in range(random.randint(1, 4)):
            what = random.choice(OPERATIONS)
            name = "2" if what in ("batch", "fine", "coarse") else random.choice("xyz")
            body: dict[str, Any] = {"kind": "k", "text": str(random.random())}
            if what == "migration":
                body["outcome"] = random.choice(("", "committed"))
            if what == "replan":
                body["closed_ms"] = random.choice((None, 7))
            if what == "closed":
                name = f"{random.choice(('migration', 'rebalance', 'replan'))}:{name}"
            text = random.choice(("r1", "r2", "")) if what == "request" else json.dumps(body)
            operations += [what, name, text]
        newest = random.choice(("", "7-7", None))
        head = [self.holder(), 100, 3, 2, 900, random.randrange(1000), newest]
        self.call(WRITE, keys, *head, *operations, newest=6 if newest is None else -1)

    def publish(self) -> None:
        random = self.random
        epoch: Epoch = random.choice(self.epochs[-3:])
        if random.random() < 0.6:
            epoch = epoch.successor((random.randrange(2), 1), fence=random.randrange(9))
            self.epochs.append(epoch)
        keys, arguments = publish_arguments(epoch)
        script = random.choice((PUBLISH, RESTORE, PUBLISH_AS_LEADER))
        if script == PUBLISH_AS_LEADER:
            self.call(script, [*keys, redis_keys.lease(QUERY)], *arguments, self.holder())
        else:
            self.call(script, keys, *arguments)

    def report(self) -> None:
        random = self.random
        worker, batch = random.randrange(2), random.randrange(4)
        keys = [redis_keys.report(QUERY, batch), redis_keys.latest_reports(QUERY)]
        text = json.dumps({"batch": batch, "salt": random.random()})
        self.call(REPORT, keys, f"{worker}:{random.randrange(2)}", text, 900, worker, batch)

    def enqueue(self) -> None:
        random = self.random
        keys = [redis_keys.requests(QUERY), redis_keys.rebalances(QUERY)]
        self.call(ENQUEUE, keys, random.choice(("r1", "r2")), random.choice(("", "x", "y")), "{}", 5)


@pytest.mark.parametrize("seed", range(3))
def test_every_script_does_the_same_on_a_real_server(server: EmbeddedRedis, seed: int) -> None:
    twins = Twins(server.url, seed)
    for _ in range(CALLS):
        twins.random.choice((twins.lease, twins.write, twins.publish, twins.report, twins.enqueue))()
        twins.sim.clock.advance(1)


def test_there_is_a_twin_for_every_script() -> None:
    assert len(SCRIPTS) == 9
