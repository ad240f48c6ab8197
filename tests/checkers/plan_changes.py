"""Random plans and orders for a `Cluster`, and what all states must be when a batch ends."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plans.tree import Join, Leaf, Node, left_deep
from tests.checkers.cluster import Cluster
from trimtab.conditions import place, to_json
from trimtab.plan_orders import PlanOrder, PlanStrategy
from worker.buffers import StateBuffer
from worker.engine import Engine
from worker.lineage import Cuts
from worker.spec import ConditionSpec
from worker.walks import Streams

Refs = tuple[int, ...]
"""Row numbers, in the order of the streams' names."""


def random_tree(luck: random.Random, names: Sequence[str]) -> Join:
    """Any tree: inputs in any order, joins of two and of more."""
    return _tree_of(luck, [Leaf(name) for name in luck.sample(names, len(names))])


def deep_change(luck: random.Random, names: Sequence[str]) -> tuple[Join, Join]:
    """Two plans with much to compute between them; or with a state in common, and something to do below and above."""
    if luck.random() < 0.5:
        return random_tree(luck, names), left_deep(luck.sample(names, len(names)))
    shared = luck.sample(names, 3)
    others = [Leaf(name) for name in names if name not in shared]
    old, new = (left_deep(luck.sample(shared, 3)) for _ in range(2))
    return _tree_of(luck, [old, *others]), _tree_of(luck, [new, *others])


def _tree_of(luck: random.Random, nodes: Sequence[Node]) -> Join:
    nodes = list(nodes)
    while len(nodes) > 1:
        count = min(len(nodes), luck.choice((2, 2, 2, 3, 4)))
        chosen = luck.sample(range(len(nodes)), count)
        joined = Join(tuple(nodes[index] for index in chosen))
        nodes = [node for index, node in enumerate(nodes) if index not in chosen] + [joined]
    assert isinstance(nodes[0], Join)
    return nodes[0]


def order(cluster: Cluster, name: str, worker: int, plan: object, strategy: str, budget_ms: int = 0) -> PlanOrder:
    """An order that the next epoch begins with."""
    return PlanOrder(
        id=name,
        worker=worker,
        plan=str(plan),
        strategy=PlanStrategy(strategy),
        budget_ms=budget_ms,
        epoch=cluster.epoch.number + 1,
    )


class Orders:
    """Gives workers orders at random: new ones, others in their place, the old plan back, moving state instead."""

    def __init__(self, cluster: Cluster, luck: random.Random) -> None:
        self.cluster, self.luck = cluster, luck
        self.often = luck.choice((0.06, 0.3))
        """Few orders come to their end, where many follow one another."""
        self.given = 0

    def next(self) -> list[PlanOrder]:
        orders = {each.worker: each for each in self.cluster.epoch.plans}
        for worker in range(len(self.cluster.plans)):
            if self.luck.random() < self.often or (worker not in orders and self.luck.random() < 0.5):
                orders[worker] = self._order(worker, orders.get(worker))
        return [orders[worker] for worker in sorted(orders)]

    def _order(self, worker: int, now: PlanOrder | None) -> PlanOrder:
        luck = self.luck
        if now is not None and now.strategy == PlanStrategy.HYBMIG and luck.random() < 0.2:
            return replace(now, strategy=PlanStrategy.MS)
        plan: object = random_tree(luck, self.cluster.names)
        record = self.cluster.durable[worker].record()
        if record is not None and luck.random() < 0.2:
            plan = record.plan  # taken back, while it changes
        self.given += 1
        strategy = luck.choice(list(PlanStrategy))
        return order(self.cluster, f"r{self.given}.1", worker, plan, strategy, luck.choice((0, 1, 1, 20)))


def stumbling_clock(luck: random.Random) -> Callable[[], int]:
    """Time goes by in jumps, so that a budget ends anywhere."""
    now = 0

    def clock() -> int:
        nonlocal now
        now += luck.choice((1, 100_000, 1_000_000, 30_000_000))
        return now

    return clock


# -- conditions


@dataclass(frozen=True)
class Rule:
    """(X.id + Y.id) % 3 <> 0"""

    one: str
    two: str

    def holds(self, ids: dict[str, int]) -> bool:
        return (ids[self.one] + ids[self.two]) % 3 != 0


def random_rules(luck: random.Random, names: Sequence[str]) -> list[Rule]:
    return [Rule(*luck.sample(list(names), 2)) for _ in range(luck.choice((0, 0, 1, 2)))]


def conditions_of(rules: Sequence[Rule], names: Sequence[str]) -> tuple[ConditionSpec, ...]:
    columns = {"key": "bigint", "at": "timestamp", "id": "bigint"}
    where = [f"({rule.one}.id + {rule.two}.id) % 3 <> 0" for rule in rules]
    placed = place(where, dict.fromkeys(names, columns), ansi=True).in_join
    return tuple(ConditionSpec(each.streams, tuple(sorted(each.columns)), to_json(each.tree)) for each in placed)


# -- what states must be


def wrong_states(engine: Engine, rules: Sequence[Rule]) -> Iterator[str]:
    """States that are not what the leaves make of them: all live combinations, each once, but for those that an entry
    excepts. A state that is being computed has some of these, too."""
    leaves = {name: _rows(engine, name) for name in engine.spec.names}
    growing = {} if engine.migration is None else engine.migration.growing
    for streams, buffer in engine.buffers.items():
        if not buffer.is_leaf:
            everything = set(_combinations(engine, sorted(streams), leaves, rules))
            needed = everything - set(_excepted(engine, streams, everything, leaves))
            allowed = everything if streams in growing and growing[streams].driver is not None else needed
            found = _found(engine, buffer)
            missing, extra = needed - set(found), set(found) - allowed
            twice = len(found) - len(set(found))
            if missing or extra or twice:
                name = "".join(sorted(streams))
                yield f"{name}: {len(missing)} of {len(needed)} missing, {len(extra)} extra, {twice} twice"


@dataclass(frozen=True)
class _Row:
    code: int
    time: int
    group: int
    id: int


def _rows(engine: Engine, stream: str) -> dict[int, _Row]:
    live = engine.leaf(stream).live(engine.limit)
    if len(live) == 0:
        return {}
    (ids,) = engine.payload[stream].gather(live.refs[0], ["id"])
    columns: Iterable[Any] = zip(live.refs[0], live.code, live.lo, live.group, ids.to_pylist(), strict=True)
    return {int(ref): _Row(int(code), int(lo), int(group), id_) for ref, code, lo, group, id_ in columns}


def _combinations(
    engine: Engine, names: Sequence[str], leaves: dict[str, dict[int, _Row]], rules: Sequence[Rule]
) -> Iterator[Refs]:
    by_key: dict[str, dict[int, list[int]]] = {name: defaultdict(list) for name in names}
    for name in names:
        for ref, row in leaves[name].items():
            by_key[name][row.code].append(ref)
    window = engine.spec.window_us

    def extend(chosen: Refs, ids: dict[str, int], low: int, high: int, code: int) -> Iterator[Refs]:
        if len(chosen) == len(names):
            yield chosen
            return
        name = names[len(chosen)]
        for ref in by_key[name].get(code, ()):
            row = leaves[name][ref]
            first, last = min(low, row.time), max(high, row.time)
            together = {**ids, name: row.id}
            ready = (rule for rule in rules if name in (rule.one, rule.two) and {rule.one, rule.two} <= together.keys())
            if last - first <= window and all(rule.holds(together) for rule in ready):
                yield from extend((*chosen, ref), together, first, last, code)

    for code in by_key[names[0]]:
        yield from extend((), {}, 2**62, -(2**62), code)


def _excepted(
    engine: Engine, streams: Streams, combinations: set[Refs], leaves: dict[str, dict[int, _Row]]
) -> Iterator[Refs]:
    migration = engine.migration
    if migration is None or streams not in migration.growing:
        return
    task = migration.growing[streams].task
    inside = [each for each in migration.growing.values() if each.streams <= streams and each.task == task]
    entries = [entry for each in inside for entry in each.lacks]
    names = sorted(streams)
    for refs in combinations:
        rows = dict(zip(names, refs, strict=True))
        group = leaves[names[0]][refs[0]].group
        if not migration.whole[group] and any(_satisfies(rows, entry) for entry in entries):
            yield refs


def _satisfies(rows: dict[str, int], entry: Cuts) -> bool:
    return all((rows[stream] - cut) % 2**32 >= 2**31 for stream, cut in entry.items())


def _found(engine: Engine, buffer: StateBuffer) -> list[Refs]:
    live = buffer.live(engine.limit)
    return list(zip(*(live.ref(name).tolist() for name in sorted(buffer.streams)), strict=True))
