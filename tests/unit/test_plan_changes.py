"""A change of plans changes no result, and no batch that one leaves in; every state is what its leaves make of it.

More seeds: TRIMTAB_PLAN_SEEDS=5000 python -m pytest tests/unit/test_plan_changes.py
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkers.cluster import Cluster
from tests.checkers.feed import WINDOW, Feed
from tests.checkers.moving import go_on, open_some
from tests.checkers.plan_changes import (
    Orders,
    Rule,
    conditions_of,
    deep_change,
    order,
    random_rules,
    random_tree,
    stumbling_clock,
    wrong_states,
)
from worker import background, buffers
from worker.engine import Engine

SEEDS = int(os.environ.get("TRIMTAB_PLAN_SEEDS", "100"))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory: these tests make and remove thousands of files."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="trimtab-plans-") as directory:
        yield Path(directory)


def small_pieces(patch: pytest.MonkeyPatch, luck: random.Random) -> None:
    """Background work that can stop anywhere, and buffers that often make room."""
    patch.setattr(buffers, "MIN_CAPACITY", luck.choice((8, 1024)))
    patch.setattr(background, "PAIRS_FIRST", luck.choice((1, 3, 20)))
    patch.setattr(background, "PAIRS_MIN", 1)
    patch.setattr(background, "PAIRS_MAX", luck.choice((4, 40)))


def watch_states(patch: pytest.MonkeyPatch, rules: Sequence[Rule]) -> None:
    """Look at all states whenever an attempt publishes them."""
    original: Callable[[Engine], Any] = Engine.saved

    def saved(engine: Engine) -> Any:
        problems = list(wrong_states(engine, rules))
        assert problems == [], problems
        return original(engine)

    patch.setattr(Engine, "saved", saved)


def twins(
    directory: Path, names: str, plans: tuple[str, ...], rules: Sequence[Rule], clock: Callable[[], int]
) -> tuple[Cluster, Cluster]:
    """One whose plans will change, and one whose plans stay."""
    made = []
    for name in ("changing", "steady"):
        cluster = Cluster(directory / name, names, WINDOW, 4, plans)
        cluster.spec = replace(cluster.spec, conditions=conditions_of(rules, names))
        cluster.checking, cluster.clock = False, clock
        made.append(cluster)
    return made[0], made[1]


def compare(changing: Cluster, steady: Cluster) -> int:
    """Results of the last batch, worker by worker."""
    found = [Counter(changing.ids(outcome)) for outcome in changing.last]
    expected = [Counter(steady.ids(outcome)) for outcome in steady.last]
    assert found == expected, changing.batch - 1
    return sum(map(Counter.total, found))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_plans_that_change_at_random(scratch: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    luck = random.Random(seed)
    names = "ABCDEF"[: luck.choice((2, 3, 3, 4, 4, 5, 6))]
    rules = random_rules(luck, names)
    small_pieces(monkeypatch, luck)
    plan = str(random_tree(luck, names))
    changing, steady = twins(scratch, names, (plan,), rules, stumbling_clock(luck))
    orders = Orders(changing, luck)
    feed = Feed(seed, names, keys=luck.choice((3, 5)))
    results, watermark = 0, 0
    for batch in range(14):
        rows = feed.rows(per_stream=5 if len(names) < 5 else 3)
        if luck.random() < 0.8:
            watermark = feed.watermark
        if batch >= 2 and luck.random() < 0.8:
            changing.publish([], plans=orders.next())
        steady.step(rows, watermark)
        with pytest.MonkeyPatch.context() as patch:
            watch_states(patch, rules)
            rebuild, repeated, zombies = ([0] if luck.random() < 0.1 else [] for _ in range(3))
            changing.step(rows, watermark, rebuild=rebuild, repeated=repeated, zombies=zombies)
        results += compare(changing, steady)


@pytest.mark.parametrize("seed", range(SEEDS // 4))
def test_one_change_to_a_deep_plan(scratch: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Long enough for several states above one another to be computed while rows come."""
    luck = random.Random(2000 + seed)
    names = "ABCDE"[: luck.choice((4, 5, 5))]
    rules = random_rules(luck, names)
    small_pieces(monkeypatch, luck)
    monkeypatch.setattr(background, "PAIRS_MAX", 12)
    plan, target = deep_change(luck, names)
    changing, steady = twins(scratch, names, (str(plan),), rules, stumbling_clock(luck))
    feed = Feed(seed, names, keys=2)
    for batch in range(14):
        rows = feed.rows(per_stream=3)
        watermark = feed.watermark if batch < 4 or batch > 10 else steady.watermark
        if batch == 4:
            strategy = luck.choice(("ms", "hybmig", "hybmig", "hybmig"))
            changing.publish([], plans=[order(changing, "r.1", 0, target, strategy, luck.choice((1, 5)))])
        steady.step(rows, watermark)
        with pytest.MonkeyPatch.context() as patch:
            watch_states(patch, rules)
            changing.step(rows, watermark)
        compare(changing, steady)


@pytest.mark.parametrize("seed", range(SEEDS // 8))
def test_groups_move_while_plans_change(scratch: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """By both protocols, there and back; results leave with the batches that they leave with where plans stay."""
    luck = random.Random(1000 + seed)
    names = "ABCD"[: luck.choice((3, 4))]
    rules = random_rules(luck, names)
    small_pieces(monkeypatch, luck)
    plans = tuple(str(random_tree(luck, names)) for _ in range(3))
    changing, steady = twins(scratch, names, plans, rules, stumbling_clock(luck))
    orders, feed = Orders(changing, luck), Feed(seed, names, keys=6)
    watermark, opened = 0, 0
    for batch in range(24):
        rows = feed.rows(per_stream=5)
        if luck.random() < 0.8:
            watermark = feed.watermark
        if batch >= 3 and luck.random() < 0.8:
            moves, owners = go_on(changing, luck)
            opened = open_some(changing, luck, moves, opened)
            changing.publish(list(moves.values()), owners, orders.next())
            steady.publish(list(moves.values()), owners)
        steady.step(rows, watermark)
        with pytest.MonkeyPatch.context() as patch:
            watch_states(patch, rules)
            rebuild, repeated, zombies = (luck.sample(range(3), luck.choice((0, 0, 1))) for _ in range(3))
            changing.step(rows, watermark, rebuild=rebuild, repeated=repeated, zombies=zombies)
        compare(changing, steady)
    assert opened > 2
