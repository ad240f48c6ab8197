"""Requests: what is refused, with which status, field and remedy; records survive their way through JSON."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from balancing.protocols.migration import Migration, Request
from balancing.requests import (
    CancelRequest,
    MoveRequest,
    RebalanceRequest,
    RebalanceState,
    Refused,
    check,
    parse_rebalance,
    parse_request,
    requested,
)
from balancing.rules import Rules, parse_rules
from balancing.situation import Situation, count_workers
from balancing.takeup import accept, likely, outcome_of
from tests.unit.balancing_snapshots import snapshot
from trimtab.epochs import first_epoch
from trimtab.moves import Kind, Move, Way

EPOCH = first_epoch("orders", "abc", (0, 1, 2, 0, 1, 2))
SITUATION = Situation(query="orders", workers=4, epoch=EPOCH, up=frozenset({0, 1, 2, 3}))
MIGRATION = Migration(
    id="n", query="orders", incarnation="abc", strategy="mslb", sender=1, receiver=2, request=Request(groups=(4,))
)
MOVE = MoveRequest(sender=0, receiver=1, groups=(0, 3))
ASKED = RebalanceRequest(id="r1", query="orders", moves=(MOVE,), strategy="mslb", at_ms=5)


def test_a_sound_request_passes() -> None:
    check(ASKED, SITUATION)
    check(replace(ASKED, moves=(MoveRequest(sender=0, receiver=3, share=1.0),)), SITUATION)
    check(replace(ASKED, expected_epoch=EPOCH.number), SITUATION)


def moved(**changes: Any) -> RebalanceRequest:
    return replace(ASKED, moves=(replace(MOVE, **changes),))


BAD: list[tuple[RebalanceRequest, Situation, str, int]] = [
    (replace(ASKED, id="../etc"), SITUATION, "id", 422),
    (replace(ASKED, strategy="swap"), SITUATION, "strategy", 422),  # type: ignore[arg-type]
    (replace(ASKED, order="random"), SITUATION, "order", 422),  # type: ignore[arg-type]
    (replace(ASKED, max_pause_ms=0.0), SITUATION, "max_pause", 422),
    (replace(ASKED, max_pause_ms=float("nan")), SITUATION, "max_pause", 422),
    (replace(ASKED, max_pause_ms=1e305), SITUATION, "max_pause", 422),
    (replace(ASKED, max_pause_ms=10**400), SITUATION, "max_pause", 422),
    (replace(ASKED, moves=()), SITUATION, "moves", 422),
    (replace(ASKED, moves=(MOVE,) * 1001), SITUATION, "moves", 422),
    (replace(ASKED, moves=(MOVE, MOVE)), SITUATION, "moves[1].groups", 422),
    (replace(ASKED, expected_epoch=2), SITUATION, "expected_epoch", 409),
    (moved(sender=4), SITUATION, "moves[0].sender", 422),
    (moved(receiver=-1), SITUATION, "moves[0].receiver", 422),
    (moved(receiver=0), SITUATION, "moves[0].receiver", 422),
    (moved(groups=(6,)), SITUATION, "moves[0].groups", 422),
    (moved(groups=(1,)), SITUATION, "moves[0].groups", 409),
    (moved(groups=()), SITUATION, "moves[0].groups", 422),
    (moved(share=0.5), SITUATION, "moves[0].groups", 422),
    (moved(groups=(), share=0.0), SITUATION, "moves[0].share", 422),
    (moved(groups=(), share=1.5), SITUATION, "moves[0].share", 422),
    (moved(groups=(), share=float("nan")), SITUATION, "moves[0].share", 422),
    (moved(measure="rows"), SITUATION, "moves[0].measure", 422),
    (moved(strategy="swap"), SITUATION, "moves[0].strategy", 422),
    (moved(sender=3, groups=(), share=0.5), SITUATION, "moves[0].sender", 409),
    (ASKED, replace(SITUATION, stopped=True), "query", 409),
    (ASKED, replace(SITUATION, up=frozenset({0})), "moves[0].receiver", 409),
    (ASKED, replace(SITUATION, migrations=(replace(MIGRATION, request=Request(groups=(3,))),)), "moves[0].groups", 409),
    (ASKED, replace(SITUATION, rules=Rules(pinned=frozenset({0}))), "moves[0].groups", 409),
]


@pytest.mark.parametrize(("request_", "situation", "field", "status"), BAD)
def test_refusals_name_field_value_and_remedy(
    request_: RebalanceRequest, situation: Situation, field: str, status: int
) -> None:
    with pytest.raises(Refused) as caught:
        check(request_, situation)
    refused = caught.value
    assert (refused.field, refused.status) == (field, status)
    assert refused.problem and refused.remedy
    again = pickle.loads(pickle.dumps(refused))
    assert (again.field, again.status) == (field, status)
    assert refused.to_json()["remedy"] == refused.remedy


def test_requests_survive_json() -> None:
    for request in (ASKED, CancelRequest(id="c", query="orders", migration="m", at_ms=3)):
        assert parse_request(json.loads(json.dumps(request.to_json()))) == request
    record = requested(ASKED)
    assert parse_rebalance(json.loads(json.dumps(record.to_json()))) == record
    assert record.open and replace(record, state="running").open
    closed: tuple[RebalanceState, ...] = ("committed", "partly-committed", "rolled-back", "refused")
    assert not any(replace(record, state=state).open for state in closed)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "explode", "id": "r"},
        {"kind": "rebalance", "id": "r"},
        {"kind": "cancel", "id": 1, "query": "orders"},
        {"id": "r"},
        [],
        3,
        "x",
    ],
)
def test_what_is_no_request_is_told(body: Any) -> None:
    with pytest.raises(ValueError, match="not a request"):
        parse_request(body)


def test_rules_survive_json() -> None:
    rules = Rules(pinned=frozenset({3, 1}), excluded=frozenset({2}))
    assert parse_rules(rules.to_text()) == rules


def test_moving_groups_are_those_of_the_epoch_and_of_the_journal() -> None:
    move = Move(id="m.w1", kind=Kind.TRANSFER, groups=(0,), sender=0, receiver=1, epoch=2)
    situation = replace(
        SITUATION,
        epoch=EPOCH.successor(EPOCH.owners, moves=(move,)),
        migrations=(MIGRATION, replace(MIGRATION, id="o", outcome="committed", request=Request(groups=(5,)))),
    )
    assert situation.moving == {0: "m.w1", 4: "n"}
    assert situation.receivers == {0: 1, 4: 2}
    assert (situation.movable(0), situation.movable(1)) == ([3], [1])
    recalled = replace(situation, epoch=EPOCH.successor(EPOCH.owners, moves=(replace(move, way=Way.RECALLED),)))
    assert recalled.receivers[0] == 0, "a recalled group stays with its sender"


def test_workers_are_counted_without_a_definition() -> None:
    assert count_workers({"workers": 8}, EPOCH, {}) == 8
    assert count_workers(None, EPOCH, {}) == 3


def test_an_accepted_request_becomes_one_migration_for_each_move() -> None:
    moves = (MOVE, MoveRequest(sender=1, receiver=2, share=0.5, strategy="ptlb"), replace(MOVE, strategy="auto"))
    accepted = accept(replace(ASKED, moves=moves, reason="why", by="me"), SITUATION, None, 9)
    assert accepted.rebalance.state == "running"
    assert accepted.rebalance.migrations == ("r1-1", "r1-2", "r1-3")
    assert [each.strategy for each in accepted.migrations] == ["mslb", "ptlb", "mslb"]
    assert "nothing is measured" in accepted.rebalance.note
    assert {(each.rebalance, each.reason, each.requested_by) for each in accepted.migrations} == {("r1", "why", "me")}


def test_a_pinned_group_is_not_expected_to_be_chosen() -> None:
    """The sender leaves it out, so the strategy must not be chosen by its size."""
    load = snapshot(EPOCH.owners, (7, 1, 1, 5, 1, 1), ["a", "b", "c", "d"])
    pinned = replace(SITUATION, rules=Rules(pinned=frozenset({0})))
    whole = MoveRequest(sender=0, receiver=1, share=1.0)
    assert [each.groups for each in likely(whole, SITUATION, load)] == [(0, 3)]
    assert [each.groups for each in likely(whole, pinned, load)] == [(3,)]


def test_a_rebalance_ends_with_its_last_migration() -> None:
    def ended(*outcomes: str) -> str | None:
        return outcome_of([replace(MIGRATION, outcome=outcome) for outcome in outcomes])

    assert ended("committed", "") is None
    assert ended("committed", "committed") == "committed"
    assert ended("rolled-back", "rolled-back") == "rolled-back"
    assert ended("committed", "rolled-back") == ended("committed-in-part") == "partly-committed"
