"""What the search is made to go through."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from balancing.protocols import Migration, Request
from tests.simulation.model import LIFE, QUERY, Scenario


def migration(
    name: str,
    strategy: Literal["mslb", "ptlb"],
    groups: tuple[int, ...] = (),
    *,
    sender: int = 0,
    share: float = 0.0,
) -> Migration:
    return Migration(
        id=name,
        query=QUERY,
        incarnation=LIFE,
        strategy=strategy,
        sender=sender,
        receiver=1 - sender,
        request=Request(groups=groups, share=share),
    )


def faults(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 1)


STORE: Final = ("full", "late", "corrupt", "differ")
ALL: Final = faults("crash", "back", "wipe", "stale", "mute", "cancel", *STORE)

MSLB_ONE: Final = Scenario("MSLB, one group", (migration("m1", "mslb", (0,)),), ALL, total=1, groups=1)
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
MSLB_WAVES: Final = Scenario(
    "MSLB, two groups one after the other", (migration("m1", "mslb", (0, 1)),), ALL, total=1, single_waves=True
)
MSLB_THERE_AND_BACK: Final = Scenario(
    "MSLB, there and back",
    (migration("m1", "mslb", (0,)), migration("m2", "mslb", (0,), sender=1)),
    faults("crash", "back", "stale"),
    total=2,
    one_by_one=True,
    groups=1,
    back_writes=2,
)
PTLB_BOTH: Final = Scenario("PTLB, two groups", (migration("m1", "ptlb", (0, 1)),), ALL, total=2)
PTLB_THERE_AND_BACK: Final = Scenario(
    "PTLB, there and back",
    (migration("m1", "ptlb", (0,)), migration("m2", "ptlb", (0,), sender=1)),
    faults("crash", "back", "cancel", "stale"),
    total=2,
    one_by_one=True,
    groups=1,
    back_writes=2,
)
SIDE_BY_SIDE: Final = Scenario(
    "MSLB beside PTLB",
    (migration("m1", "mslb", (0,)), migration("m2", "ptlb", (1,))),
    faults("crash", "back", "wipe", "mute", "cancel", "corrupt"),
    total=1,
)
ASKED_TWICE: Final = Scenario(
    "two amounts from one worker",
    (migration("m1", "mslb", share=0.5), migration("m2", "mslb", share=0.5)),
    faults("crash", "cancel"),
    total=1,
)

SCENARIOS: Final = (
    MSLB_ONE,
    FORGETFUL,
    TWO_MANAGERS,
    HASTY,
    NO_PACKAGE,
    MSLB_WAVES,
    MSLB_THERE_AND_BACK,
    PTLB_BOTH,
    PTLB_THERE_AND_BACK,
    SIDE_BY_SIDE,
    ASKED_TWICE,
)
