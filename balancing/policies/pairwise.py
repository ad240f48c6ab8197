"""The paper's policy: from the most loaded to the least loaded, half of their difference (PTLB/MSLB section 3.2).

The paper's machine is our executor; the pair are its most and its least loaded workers. One move, so it takes several
rounds to level many executors; `level` does it in one.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancing.load import Snapshot
from balancing.policies.policy import (
    NO_RECEIVER,
    Finding,
    SuggestedMove,
    Suggestion,
    executors_taking_part,
    movable_groups,
    oversized_groups,
    taking_part,
)
from balancing.selection import nearest
from balancing.settings import Settings


@dataclass(frozen=True)
class Pairwise:
    name: str = "pairwise"

    def suggest(self, snapshot: Snapshot, settings: Settings) -> Suggestion:
        findings = oversized_groups(snapshot, settings.measure)
        loads = executors_taking_part(snapshot, settings.measure)
        members = taking_part(snapshot)
        workers = snapshot.worker_loads(settings.measure)
        if len(loads) < 2:
            nobody = Finding(kind=NO_RECEIVER, text="Fewer than two executors take part: there is nowhere to move to.")
            return Suggestion(findings=(*findings, nobody))
        largest = max(loads, key=lambda executor: (loads[executor], executor))
        least = min(loads, key=lambda executor: (loads[executor], executor))
        sender = max(members[largest], key=lambda worker: (workers[worker], -worker))
        receiver = min(members[least], key=lambda worker: (workers[worker], worker))
        amount = (loads[largest] - loads[least]) / 2
        placed = snapshot.placed()
        group_load = snapshot.group_load(settings.measure)
        movable = movable_groups(snapshot, placed, [sender])
        if settings.max_moved_bytes is not None:
            movable = _within(movable, snapshot, settings.max_moved_bytes)
        groups = nearest({group: float(group_load[group]) for group in movable}, amount)
        moved = sum(float(group_load[group]) for group in groups)
        # The receiver must not become what the sender was: that would be a circle.
        if not groups or loads[least] + moved >= loads[largest]:
            return Suggestion(findings=findings)
        move = SuggestedMove(sender=sender, receiver=receiver, groups=groups)
        # Others may be loaded as much as the largest: their turn comes, and what this move gains is the pair's.
        return Suggestion(moves=(move,), findings=findings, among=(largest, least))


def _within(groups: list[int], snapshot: Snapshot, max_bytes: int) -> list[int]:
    """Of the groups, the small ones that fit into the budget together: whatever is chosen of them fits too."""
    kept: list[int] = []
    for group in sorted(groups, key=lambda each: (snapshot.group_bytes[each], each)):
        max_bytes -= int(snapshot.group_bytes[group])
        if max_bytes < 0:
            break
        kept.append(group)
    return sorted(kept)
