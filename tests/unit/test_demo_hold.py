"""`--hold` without Spark: the skew wanders from worker to worker, never in the middle of a move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from commands.demo import workload as work
from commands.demo.holding import WANDER_S, WanderingSkew
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import dealt_in_turn, first_epoch
from trimtab.moves import Kind, Move
from trimtab.store import Store

pytestmark = pytest.mark.redis
GROUPS = np.arange(work.KEYS) % work.PARTITIONS


@pytest.fixture
def load(tmp_path: Path) -> work.DemoWorkload:
    return work.DemoWorkload(tmp_path, seed=3, rows_per_s=30_000, groups=GROUPS, workers=4, start_us=10**15)


def share_of(load: work.DemoWorkload, worker: int) -> float:
    """Of the rows in the next slice."""
    load.write_slice(late=False)
    users = pq.read_table(max((load.directory / "A").iterdir()))["user"].drop_null().to_numpy()
    return float(np.mean(GROUPS[users] % 4 == worker))


def test_the_skew_wanders(server: EmbeddedRedis, load: work.DemoWorkload) -> None:
    store = Store(server.url)
    epoch = first_epoch("demo", "i", dealt_in_turn(work.PARTITIONS, 4))
    store.publish(epoch)
    skew = WanderingSkew(load, store, "demo", 4, first=work.HOT_WORKER)
    assert share_of(load, 1) == pytest.approx(work.HOT_SHARE, abs=0.03)
    assert skew.look(100.0) is None
    assert skew.look(100.0 + WANDER_S - 1) is None
    assert skew.look(100.0 + WANDER_S) == 2
    assert share_of(load, 2) == pytest.approx(work.HOT_SHARE, abs=0.03)
    assert skew.look(101.0 + WANDER_S) is None

    moving = epoch.successor(
        epoch.owners, moves=(Move(id="m.w1", kind=Kind.DUPLICATE, sender=0, receiver=1, groups=(0,), epoch=2),)
    )
    store.publish(moving)
    assert skew.look(100.0 + 2 * WANDER_S) is None, "a move is under way"
    # Worker 3 has nothing any more: it is passed over.
    owners = tuple(0 if owner == 3 else owner for owner in epoch.owners)
    store.restore(moving.successor(owners))
    assert skew.look(100.0 + 2 * WANDER_S) == 0
    server.kill()
    assert skew.look(100.0 + 9 * WANDER_S) is None
    server.start()
