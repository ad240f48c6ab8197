"""Migrations in the middle of their way, for tests that look at one."""

from __future__ import annotations

from balancing.protocols.migration import Migration, Request, StoryLine, Wave
from balancing.protocols.table import State


def parallel_track(*story: StoryLine) -> Migration:
    """PTLB after step 3: group 0 goes to workers 0 and 1."""
    return Migration(
        id="m",
        query="q",
        incarnation="i",
        strategy="ptlb",
        sender=0,
        receiver=1,
        request=Request(groups=(0,)),
        chosen=(0,),
        waves=(Wave(groups=(0,), state=State.DUPLICATING, seen=1),),
        story=story,
    )
