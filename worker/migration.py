"""From one plan to another while the query runs: moving state (MS/PT section 4.1) and HybMig (its section 3).

Two plans share every state that both have, by its set of streams; leaves are among them. What only the new plan has
*grows* until it is complete; then the old plan's own states go, and the new plan is the plan. The old plan's states
stay whole until then, so an order can be taken back at any time, and groups can leave and come (`Engine.export`).

**What a growing state lacks** is said by entries (`worker.lineage`): X lacks exactly the live combinations of its
streams that satisfy an entry whose streams lie inside X. An entry is kept with the state whose streams it names, all
of them; X is complete when no entry lies inside it. All of this is said of one task: what grows below a shared state
does not concern those above it, since that state is whole.

- *Begin.* A state whose inputs are all complete begins empty, with one entry: all rows older than now. Under HybMig the
  states above begin empty, too, without an entry of their own; under moving state they begin when their inputs are
  complete.
- *A row comes.* Every growing state on its way gains the combinations of what its inputs have. They have what satisfies
  no entry inside them, and an entry that names all of X's streams is not satisfied by a row that comes after its cuts.
  So X still lacks exactly what the entries say.
- *Meanwhile* `worker.background` adds what satisfies X's entries, piece by piece. As long as the entries stand, what
  rows that come make of these tuples is left out, as if they were not there.
- *X is complete* when all of that is there. Under HybMig the state Y above it, if it is growing too, gains each of X's
  entries with "older than now" for the streams of Y that are not in X (HybMig section 3.4 has "all streams older", one
  instant for all, and only once the sibling is complete: with either of them results are lost). For combinations that
  exist now this changes nothing, as all their rows are older than now; for those to come, a new row of Y minus X finds
  X complete. So the invariant holds for Y and for all above it.
- *Expiry.* An entry ends when of one of its streams no row older than the cut is live: nothing can satisfy it.

**Results** (and tuples of a shared state above growing ones, which is the root of a task of its own): a combination is
made when its newest row comes. Under HybMig the new plan makes it if its parts are in the new plan's inputs, that is,
if it satisfies no entry inside any of them; the old plan, whose states are whole, makes those that satisfy one. Each is
made once, in the batch in which it would have been made without a migration. Under moving state the old plan makes all.

The papers' old plan is pruned down to what may still satisfy an entry. Here that is done in the last join of each task,
which makes the results; its states are kept up (docs/adr/0012).

**Groups** that come from another worker have row numbers above all cuts, so they satisfy no entry: what is made of them
is put into every state that has begun. Expiry goes by the watermark: groups that are frozen for a move do not hold an
entry back. When only their rows are left, the new plan's states are made whole for them at once, and from then on the
new plan makes all of their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from plans.tree import Join, parse_plan
from worker.buffers import Flags, StateBuffer, Tuples, concatenated
from worker.lineage import Cuts, grown, may_satisfy
from worker.load import GroupLoad
from worker.spec import Saved
from worker.states import Counted, States
from worker.walks import Level, Segment, Streams, inputs, joins, matched, parents, task_of


@dataclass
class Growing:
    """A state of the new plan that the old one does not have."""

    streams: Streams
    inputs: tuple[Streams, ...]
    above: Streams
    """The join above it."""
    task: Streams
    lacks: list[Cuts] = field(default_factory=list)
    """Entries that name all of its streams."""
    begun: bool = False
    """Whether it has a buffer and takes what comes."""
    driver: Streams | None = None
    """The input that background computation reads, from new to old, down from the mark in its buffer."""

    def level_from(self, source: Streams) -> Level:
        return Level(self.streams, tuple(each for each in self.inputs if each != source))


class Migration:
    """The states that grow, and who makes which results meanwhile."""

    def __init__(self, states: States, old: Join, target: Join, *, both_emit: bool) -> None:
        self.states = states
        self.target = target
        self.both_emit = both_emit
        """HybMig: the new plan makes results as soon as it can."""
        common, above = matched(old, target), parents(target)
        self.growing = {
            streams: Growing(streams, inputs(node), above[streams], task_of(streams, common))
            for streams, node in joins(target).items()
            if streams not in common
        }
        """From the bottom up."""
        self.leaving = joins(old).keys() - common
        """States that only the old plan has."""
        self.whole: Flags = states.flags(())
        """Groups of which the new plan's states lack nothing, whatever the entries say."""
        self.pairs = 0
        """How much a piece of background work looks at (`worker.background`)."""
        self.sizes: dict[Streams, int] = {}
        """How large each growing state will be, as it was estimated when the change began."""

    def begin(self, sizes: Mapping[Streams, int]) -> None:
        self.sizes = {streams: sizes.get(streams, 0) for streams in self.growing}
        for each in self.growing.values():
            self._begin_if_ready(each)

    @classmethod
    def attach(cls, states: States, old: Join, saved: Saved) -> Migration:
        migration = cls(states, old, parse_plan(saved["target"], states.spec.names), both_emit=saved["both_emit"])
        for streams, lacks, begun, driver in saved["growing"]:
            each = migration.growing[frozenset(streams)]
            each.lacks, each.begun = lacks, begun
            each.driver = None if driver is None else frozenset(driver)
        migration.whole = states.flags(saved["whole"])
        migration.pairs = saved["pairs"]
        migration.sizes = dict(zip(migration.growing, saved["sizes"], strict=True))
        return migration

    def saved(self) -> Saved:
        return {
            "target": str(self.target),
            "both_emit": self.both_emit,
            "growing": [
                [sorted(each.streams), each.lacks, each.begun, None if each.driver is None else sorted(each.driver)]
                for each in self.growing.values()
            ],
            "whole": np.flatnonzero(self.whole).tolist(),
            "pairs": self.pairs,
            "sizes": list(self.sizes.values()),
        }

    # -- what is complete

    def is_complete(self, streams: Streams) -> bool:
        """Whether a state, of whichever plan, is all that can be made of the leaves."""
        each = self.growing.get(streams)
        return each is None or (each.begun and not any(True for _ in self._inside(each)))

    @property
    def is_over(self) -> bool:
        return all(map(self.is_complete, self.growing))

    @property
    def oldest_cut(self) -> dict[str, int]:
        """Of each stream, the smallest number that is compared with."""
        oldest: dict[str, int] = {}
        for entry in self._entries(self.growing.values()):
            for stream, cut in entry.items():
                oldest[stream] = min(cut, oldest.get(stream, cut))
        return oldest

    @property
    def done(self) -> int:
        """Tuples in growing states."""
        return sum(self.states.buffers[each.streams].size for each in self.growing.values() if each.begun)

    def complete(self, each: Growing) -> None:
        """Nothing that satisfies its entries is missing any more."""
        entries, each.lacks, each.driver = each.lacks, [], None
        parent = self.growing.get(each.above)
        if parent is None:
            return
        if parent.begun:
            now = self.states.next_rows
            rising = [grown(entry, parent.streams - each.streams, now) for entry in entries]
            parent.lacks += [entry for entry in rising if entry not in parent.lacks]
        else:
            self._begin_if_ready(parent)

    def _begin_if_ready(self, each: Growing) -> None:
        ready = all(map(self.is_complete, each.inputs))
        if not ready and not self.both_emit:
            return
        # Room for what is expected, and for what expires meanwhile, so that nothing is copied before the change ends.
        # The estimate may be far too high where conditions leave little: at most twice what the largest state has.
        most = max(buffer.capacity for buffer in self.states.buffers.values())
        capacity = 2 * min(self.sizes.get(each.streams, 0), most)
        streams = tuple(name for name in self.states.spec.names if name in each.streams)
        self.states.buffers[each.streams] = StateBuffer.create(self.states.directory, streams, capacity)
        each.begun = True
        if ready:
            each.lacks = [grown({}, each.streams, self.states.next_rows)]

    def _inside(self, each: Growing) -> Iterator[Cuts]:
        """All entries inside a state. What lies below a shared state is no part of it: that one is complete."""
        yield from self._entries(o for o in self.growing.values() if o.streams <= each.streams and o.task == each.task)

    @staticmethod
    def _entries(growing: Iterable[Growing]) -> Iterator[Cuts]:
        for each in growing:
            yield from each.lacks

    # -- rows that come

    def through(self, segment: Segment, moving: Tuples, load: GroupLoad, counted: Counted | None) -> Tuples:
        """What becomes of tuples in one task in which the plans differ: in both plans, and each combination once."""
        states = self.states
        arrived = moving
        for level in segment.old[:-1]:
            moving = states.keep(states.climb(moving, level, load.probes, counted))
        last = segment.old[-1]
        if self.both_emit:
            made = self._pruned(segment, moving, last, load, counted)
        else:
            made = states.climb(moving, last, load.probes, counted)
        for level in segment.new[:-1]:
            if not self.growing[level.streams].begun:
                return made
            arrived = states.keep(self._without_early(segment, states.climb(arrived, level, load.probes)))
        if not self.both_emit:
            return made
        arrived = self._without_early(segment, states.climb(arrived, segment.new[-1], load.probes))
        return concatenated([made, arrived])

    def _without_early(self, segment: Segment, found: Tuples) -> Tuples:
        """Leave out what was made of tuples that background computation has added to a state that is not complete yet:
        until then its entries speak of them."""
        mine = [each for each in self.growing.values() if each.task == segment.streams and each.driver is not None]
        early = [each for each in mine if each.streams < set(found.streams)]
        if not early or not self.both_emit:
            return found
        wanted = ~may_satisfy(found, list(self._entries(early))) | self.whole[found.group]
        return found if wanted.all() else found.take(np.flatnonzero(wanted))

    def _pruned(
        self, segment: Segment, moving: Tuples, last: Level, load: GroupLoad, counted: Counted | None
    ) -> Tuples:
        """The old plan's part: combinations that satisfy an entry of the task."""
        table = list(self._entries(each for each in self.growing.values() if each.task == segment.streams))

        def prune(tuples: Tuples) -> Tuples:
            wanted = may_satisfy(tuples, table) & ~self.whole[tuples.group]
            return tuples if wanted.all() else tuples.take(np.flatnonzero(wanted))

        return self.states.climb(prune(moving), last, load.probes, counted, prune)

    # -- what expires, and groups that wait

    def expire_entries(self) -> None:
        """Drop entries that nothing can satisfy any more (see above: Expiry, Groups)."""
        if not self.both_emit:
            return  # nothing has to end before background computation has done it
        states = self.states
        frozen = states.flags(states.frozen)
        passed = self.whole | frozen
        over = [
            entry
            for entry in self._entries(self.growing.values())
            if any(not states.leaf(s).has_live_before(cut, states.horizon, passed) for s, cut in entry.items())
        ]
        if over and (frozen & ~self.whole).any():
            self._make_whole(frozen & ~self.whole)
        for each in self.growing.values():
            each.lacks = [entry for entry in each.lacks if entry not in over]
            if not each.lacks and each.driver is not None:
                states.buffers[each.driver].mark = None
                each.driver = None

    def _make_whole(self, groups: Flags) -> None:
        """Put all that some groups have into every state that the new plan alone has."""
        states = self.states
        for each in self.growing.values():
            states.buffers[each.streams].expire(groups)
            first = states.buffers[each.inputs[0]].live_of(groups, states.limit)
            states.keep(states.climb(first, each.level_from(each.inputs[0]), states.no_load()))
        self.whole = self.whole | groups

    @property
    def filled(self) -> list[tuple[Streams, tuple[Streams, ...]]]:
        """States that take what comes, and their inputs; from the bottom up."""
        return [(each.streams, each.inputs) for each in self.growing.values() if each.begun]

    # -- the end

    def abandon(self) -> None:
        """Drop what was being built."""
        self._drop(each.streams for each in self.growing.values() if each.begun)

    def settle(self) -> None:
        """The new plan has all it needs: drop what only the old one needed."""
        self._drop(self.leaving)

    def _drop(self, gone: Iterable[Streams]) -> None:
        for streams in gone:
            self.states.buffers.pop(streams).drop()
        for buffer in self.states.buffers.values():
            buffer.mark = None
