"""Command line of the simulator: `python -m tests.simulator --seeds 200 --first 1`, or `--seed N --verbose` for one."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.simulator.drawing import draw_story
from tests.simulator.story import Action, Story, parse_story
from tests.simulator.telling import explain, tell
from tests.simulator.world import World


class Teller:
    """Prints what happens in a story as it does."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, world: World, action: Action) -> None:
        bound = world.spark.bound.number if world.spark.epochs else 0
        print(f"{world.clock.monotonic():8.3f} batch {world.spark.committed} epoch {bound}: {action.render()}")
        for told in world.server.told[self._told :]:
            print(f"{'':10}{'ALARM ' if told.alarm else ''}{told.kind}: {told.text}")
        self._told = len(world.server.told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--story", type=Path, help="a story in a file, as --save writes it")
    parser.add_argument("--save", type=Path, help="write the story to a file")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    parser.add_argument("--keep", action="store_true", help="do not shorten a story that fails")
    options = parser.parse_args()
    if options.story is not None:
        stories = [parse_story(options.story.read_text())]
    else:
        first, count = (options.first, options.seeds) if options.seed is None else (options.seed, 1)
        stories = [draw_story(seed) for seed in range(first, first + count)]
    if options.save is not None:
        options.save.write_text(stories[0].to_text())
    bad = [story.seed for story in stories if not _told_well(story, options.verbose, options.keep)]
    print(f"{len(stories)} stories, {len(bad)} ended badly{': ' + ', '.join(map(str, bad)) if bad else ''}")
    return 1 if bad else 0


def _told_well(story: Story, verbose: bool, keep: bool) -> bool:
    started = time.process_time()
    outcome = tell(story, Teller() if verbose else None)
    if outcome.failure is None:
        spent_s, batches = time.process_time() - started, outcome.world.spark.committed + 1
        print(f"seed {story.seed}: well, {batches} batches, {spent_s:.2f} s of CPU", flush=True)
        return True
    print(f"seed {story.seed}: {outcome.failure.text}" if keep or verbose else explain(story, outcome.failure))
    return False


if __name__ == "__main__":
    sys.exit(main())
