"""What the search is made to go through."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from balancing.replans.requests import ReplanRequest
from balancing.requests import MoveRequest, RebalanceRequest
from tests.simulation.world import FAULTS, QUERY, Scenario


def request(
    name: str,
    strategy: Literal["mslb", "ptlb"],
    groups: tuple[int, ...] = (),
    *,
    sender: int = 0,
    share: float | None = None,
) -> RebalanceRequest:
    """Its migration is called `name`-1."""
    move = MoveRequest(sender=sender, receiver=1 - sender, groups=groups, share=share)
    return RebalanceRequest(id=name, query=QUERY, moves=(move,), strategy=strategy)


def replan(name: str, worker: int = 0) -> ReplanRequest:
    return ReplanRequest(id=name, query=QUERY, worker=worker, plan="((A C) B)", strategy="ms")


def faults(*names: str, **times: int) -> dict[str, int]:
    return dict.fromkeys(names, 1) | times


STORE: Final = ("full", "corrupt", "differ")
ALL: Final = faults("crash", "back", "wipe", "stale", "mute", "cancel", "idle", "replay", *STORE)

MSLB_ONE: Final = Scenario("MSLB, one group", (request("m1", "mslb", (0,)),), ALL, total=1, groups=1)
FORGETFUL: Final = replace(
    MSLB_ONE,
    name="MSLB, Redis and manager lose what they had",
    faults=faults("crash", "back", "wipe", "cancel", "stale"),
    total=2,
    back_writes=2,
)
TWO_MANAGERS: Final = replace(
    MSLB_ONE, name="MSLB, a manager that has lost its lease", faults=faults("ghost", "cancel"), total=2
)
HASTY: Final = replace(
    FORGETFUL,
    name="MSLB, epochs composed before the journal is put right",
    faults=faults("fall", "cancel", "hasty"),
    total=3,
    back_writes=6,
)
NO_PACKAGE: Final = replace(
    MSLB_ONE, name="MSLB, trouble with the package", faults=faults("crash", "cancel", "mute", *STORE), total=2
)
LASTING: Final = replace(
    MSLB_ONE,
    name="MSLB, the transfer store is broken for good",
    faults=faults(
        "full for good", "corrupt for good", "gone for good", "unlistable for good", "crash", "cancel", "back"
    ),
    total=2,
    back_writes=1,
)
FULL: Final = replace(
    MSLB_ONE,
    name="MSLB, the transfer store was never writable",
    faults=faults("crash", "cancel", "mute", "idle", "replay"),
    total=2,
    broken="full for good",
    outcome="rolled-back",
)
UNREADABLE: Final = replace(FULL, name="MSLB, no package can ever be read", broken="corrupt for good")
LOSING: Final = replace(
    MSLB_ONE,
    name="MSLB, attempts that lose and batches that are replayed",
    faults=faults("cancel", "full", "corrupt", replay=2, idle=2),
    total=3,
)
MUTE: Final = replace(MSLB_ONE, name="MSLB, a worker is mute for a while", faults=faults("cancel", mute=3), total=4)
MSLB_WAVES: Final = Scenario(
    "MSLB, two groups one after the other", (request("m1", "mslb", (0, 1)),), ALL, total=1, single_waves=True
)
MSLB_THERE_AND_BACK: Final = Scenario(
    "MSLB, there and back",
    (request("m1", "mslb", (0,)), request("m2", "mslb", (0,), sender=1)),
    faults("crash", "back", "stale", "idle"),
    total=2,
    one_by_one=True,
    groups=1,
    back_writes=2,
)
PTLB_BOTH: Final = Scenario("PTLB, two groups", (request("m1", "ptlb", (0, 1)),), ALL, total=2)
PTLB_THERE_AND_BACK: Final = Scenario(
    "PTLB, there and back",
    (request("m1", "ptlb", (0,)), request("m2", "ptlb", (0,), sender=1)),
    faults("crash", "back", "cancel", "stale", "idle"),
    total=2,
    one_by_one=True,
    groups=1,
    back_writes=2,
)
SIDE_BY_SIDE: Final = Scenario(
    "MSLB beside PTLB",
    (request("m1", "mslb", (0,)), request("m2", "ptlb", (1,))),
    faults("crash", "back", "wipe", "mute", "cancel", "corrupt"),
    total=1,
)
ASKED_TWICE: Final = Scenario(
    "two amounts from one worker",
    (request("m1", "mslb", share=0.5), request("m2", "mslb", share=0.5)),
    faults("crash", "cancel"),
    total=1,
)

LET_IN: Final = replace(
    ASKED_TWICE,
    name="two amounts from one worker, Redis and manager lose what they had",
    requests=(request("m1", "ptlb", share=0.5), request("m2", "ptlb", share=0.5)),
    faults=faults("fall", "cancel"),
    total=2,
    back_writes=2,
)

PLAN: Final = "((A B) C)"
REPLAN: Final = Scenario(
    "a change of plans",
    (replan("p1"),),
    faults("crash", "wipe", "mute", "cancel", "idle", "replay"),
    total=2,
    groups=1,
    plan=PLAN,
    back_writes=2,
)
REPLAN_HASTY: Final = replace(
    REPLAN,
    name="a change of plans, epochs composed before the journal is put right",
    faults=faults("fall", "cancel", "hasty", "ghost"),
    total=2,
    back_writes=4,
)
REPLAN_TWICE: Final = replace(
    REPLAN,
    name="a change of plans, and another one of the same worker",
    requests=(replan("p1"), replace(replan("p2"), plan="(A B C)")),
    faults=faults("crash", "back", "stale", "cancel", "fall"),
    total=1,
    one_by_one=True,
)
REPLAN_BESIDE_MSLB: Final = replace(
    REPLAN,
    name="a change of plans beside MSLB",
    requests=(request("m1", "mslb", (0, 1)), replan("p1")),
    faults=faults("crash", "cancel"),
    total=1,
    groups=2,
    single_waves=True,
)
REPLAN_BESIDE_PTLB: Final = replace(
    REPLAN,
    name="a change of plans beside PTLB",
    requests=(request("m1", "ptlb", (0,)), replan("p1", 1)),
    faults=faults("crash", "cancel", "mute"),
    total=1,
)

SCENARIOS: Final = (
    MSLB_ONE,
    FORGETFUL,
    TWO_MANAGERS,
    HASTY,
    NO_PACKAGE,
    LASTING,
    FULL,
    UNREADABLE,
    LOSING,
    MUTE,
    MSLB_WAVES,
    MSLB_THERE_AND_BACK,
    PTLB_BOTH,
    PTLB_THERE_AND_BACK,
    SIDE_BY_SIDE,
    ASKED_TWICE,
    LET_IN,
    REPLAN,
    REPLAN_HASTY,
    REPLAN_TWICE,
    REPLAN_BESIDE_MSLB,
    REPLAN_BESIDE_PTLB,
)

MORE: Final = (
    MSLB_ONE,
    PTLB_BOTH,
    MSLB_WAVES,
    MSLB_THERE_AND_BACK,
    PTLB_THERE_AND_BACK,
    Scenario(
        "MSLB there, PTLB back",
        (request("m1", "mslb", (0,)), request("m2", "ptlb", (0,), sender=1)),
        {},
        total=0,
        one_by_one=True,
        groups=1,
    ),
    SIDE_BY_SIDE,
    ASKED_TWICE,
    REPLAN,
    REPLAN_TWICE,
    REPLAN_BESIDE_MSLB,
    REPLAN_BESIDE_PTLB,
    Scenario(
        "MSLB, three groups one after the other",
        (request("m1", "mslb", (0, 1, 2)),),
        {},
        total=0,
        groups=3,
        single_waves=True,
    ),
    Scenario(
        "three migrations at once",
        (request("m1", "mslb", (0,)), request("m2", "ptlb", (1,)), request("m3", "mslb", (2,))),
        {},
        total=0,
        groups=3,
        single_waves=True,
    ),
)


def larger(faults_max: int) -> tuple[Scenario, ...]:
    """With everything that may go wrong, so many times."""
    everything = dict.fromkeys(FAULTS, faults_max)
    return tuple(
        replace(each, name=f"{each.name}, {faults_max} of all faults", faults=everything, total=faults_max)
        for each in MORE
    )
