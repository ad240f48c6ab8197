"""A manager takes over open moves of another version: of the one before, and of the next one after a rollback.

`records/format_3.json` was written by the version before; the others are simulated by what would differ in Redis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from balancing.protocols import migration as module
from balancing.protocols.migration import FORMAT, Migration, parse_migration
from balancing.requests import MoveRequest, RebalanceRequest, parse_rebalance
from manager.embedded import EmbeddedManager
from tests.checkers.served import QUICK, until
from tests.simulation.data_plane import DataPlane
from trimtab import redis_keys
from trimtab.embedded import EmbeddedRedis
from trimtab.records import in_format
from trimtab.reports import parse_report

Json = dict[str, Any]
RECORDS = Path(__file__).parent / "records"


def as_format_3(body: Json) -> Json:
    """What the version before wrote: see records/format_3.json."""
    return {**{name: value for name, value in body.items() if name != "oldest_reader"}, "format": 3}


def as_next(body: Json) -> Json:
    """What the next version might write: a field more here and there, which this one may ignore."""
    waves = [{**wave, "newer": 1} for wave in body["waves"]]
    return {**body, "format": FORMAT + 1, "oldest_reader": FORMAT, "newer": {"a": [1]}, "waves": waves}


def as_stranger(body: Json) -> Json:
    """A version whose records this one must not go on with."""
    return {**body, "format": FORMAT + 9, "oldest_reader": FORMAT + 9}


def test_records_of_the_version_before_are_read_as_they_were_meant() -> None:
    written = json.loads((RECORDS / "format_3.json").read_text())
    assert {each["format"] for each in written["migrations"].values()} == {3}
    for body in written["migrations"].values():
        read = parse_migration(body)
        again = json.loads(json.dumps(read.to_json()))
        assert again["format"] == FORMAT
        assert as_format_3(again) == body, "nothing is lost on the way"
    assert sum(not parse_migration(body).done for body in written["migrations"].values()) == 2
    for body in written["rebalances"].values():
        assert json.loads(json.dumps(parse_rebalance(body).to_json())) == body


def test_fields_of_a_later_version_are_left_out_unless_it_forbids() -> None:
    body = next(iter(json.loads((RECORDS / "format_3.json").read_text())["migrations"].values()))
    here = json.loads(json.dumps(parse_migration(body).to_json()))
    assert parse_migration(as_next(here)) == parse_migration(here)
    with pytest.raises(ValueError, match="written by a newer version of Trimtab"):
        parse_migration(as_stranger(here))
    with pytest.raises(ValueError, match="too old"):
        parse_migration({**here, "format": 1})


def test_every_format_since_the_oldest_has_a_step() -> None:
    assert sorted(module.UPGRADES) == list(range(3, FORMAT))
    steps = {1: lambda body: {**body, "b": body["a"] + 1}, 2: lambda body: {**body, "c": body["b"] + 1}}
    assert in_format({"format": 1, "a": 1}, 3, steps, "x") == {"format": 1, "a": 1, "b": 2, "c": 3}


@pytest.fixture
def plane() -> Iterator[DataPlane]:
    with EmbeddedRedis() as server:
        plane = DataPlane(server.url)
        for _ in range(3):
            plane.step()
        yield plane


def other_version(monkeypatch: pytest.MonkeyPatch, write: Callable[[Json], Json]) -> None:
    """From now on managers write records as another version does."""
    plain = Migration.to_json
    monkeypatch.setattr(Migration, "to_json", lambda self: write(plain(self)))


def open_records(plane: DataPlane) -> list[Json]:
    texts = plane.store.client.hgetall(redis_keys.migrations("orders")).values()
    return [body for body in map(json.loads, texts) if not body["outcome"]]


def ask(manager: EmbeddedManager, strategy: Any) -> None:
    move = MoveRequest(sender=0, receiver=2, groups=(0,))
    manager.rebalance(RebalanceRequest(id="r", query="orders", moves=(move,), strategy=strategy))


@pytest.mark.redis
@pytest.mark.parametrize("strategy", ["mslb", "ptlb"])
@pytest.mark.parametrize("before", [as_format_3, as_next, as_stranger], ids=lambda each: each.__name__)
def test_an_open_move_is_taken_over(
    plane: DataPlane, monkeypatch: pytest.MonkeyPatch, before: Callable[[Json], Json], strategy: str
) -> None:
    """Upgrade (format 3), rollback (next), and a version that nothing is known about: then the epoch is enough."""
    with monkeypatch.context() as patched:
        other_version(patched, before)
        if before is as_stranger:  # it can read its own
            patched.setattr(module, "FORMAT", FORMAT + 9)
        with EmbeddedManager(plane.store.url, QUICK) as manager:
            ask(manager, strategy)
            until(lambda: bool(plane.bound.moves), plane)
    (left,) = open_records(plane)
    assert left["format"] == before({"waves": []})["format"]
    assert not left["outcome"] and left["waves"]
    with EmbeddedManager(plane.store.url, QUICK) as manager:
        until(lambda: not plane.bound.moves and plane.owners[0] == 2, plane)
        until(lambda: all(each.done for each in manager.migrations("orders").values()), plane)
        for _ in range(4):
            plane.step()
        (ended,) = manager.migrations("orders").values()
    assert (ended.outcome, ended.adopted) == ("committed", before is as_stranger)
    assert plane.verdict() == (0, 0)
    assert plane.leftovers() == []
    if before is as_stranger:
        assert any("newer version" in each["text"] for each in plane.store.alarms("orders"))


@pytest.mark.redis
def test_reports_of_later_workers_are_read(plane: DataPlane) -> None:
    """A manager may be older than the drivers: it reads what it knows."""
    texts = plane.store.client.hgetall(redis_keys.latest_reports("orders")).values()
    for text in texts:
        later = json.dumps({**json.loads(text), "newer": 1})
        assert parse_report(later) == parse_report(text)
