"""Tell many stories: `python -m tests.simulation --seeds 2000`; or one: `--seed 17 --show`.

Prints what was covered (fault kinds, which event met which state, crashes at effects, refusals), so that a simulator
that does nothing is seen. A story that breaks an invariant is told again with fewer faults until none can be left
out; its seed, the faults that are left and the end of its log are printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import logging
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence

import structlog

from tests.simulation.checkers import Violation
from tests.simulation.coverage import EXPECTED_FROM, unseen
from tests.simulation.faults import Fault, draw
from tests.simulation.story import LENGTH_S, Story

SHRINKS_MAX = 40
PROCESSES = 2
PROGRESS_EVERY = 200
STORIES_EACH = 40  # that one process tells
CHUNK = 4


def silence() -> None:
    """For a process that tells stories: no log, no warnings, and nothing said by what killed processes left.

    The collector rests, since a story makes little garbage that lasts; the process ends after STORIES_EACH.
    """
    gc.disable()
    sys.unraisablehook = lambda _: None
    warnings.simplefilter("ignore")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def tell(seed: int, faults: list[Fault] | None = None) -> tuple[int, collections.Counter[str], str | None]:
    """One story: its coverage, and what it broke (None where nothing)."""
    silence()
    story, broken = Story(seed, faults), None
    try:
        story.run()
    except Violation as violation:
        broken = str(violation)
    except Exception:  # noqa: BLE001 - a story that cannot be told is a finding like any other
        broken = traceback.format_exc(limit=-3)
    return seed, collections.Counter(story.coverage), broken


def fingerprint(seed: int) -> tuple[str, int]:
    """What must be the same each time: the digest of the log, and the number of steps."""
    silence()
    story = Story(seed)
    story.run()
    return story.digest(), story.loop.steps


def shrink(seed: int) -> list[Fault]:
    """The same seed with as few faults as still break something."""
    faults, tries = draw(seed, LENGTH_S), 0
    changed = True
    while changed and tries < SHRINKS_MAX:
        changed = False
        for number in range(len(faults)):
            fewer = faults[:number] + faults[number + 1 :]
            tries += 1
            if tell(seed, fewer)[2] is not None:
                faults, changed = fewer, True
                break
    return faults


def many(seeds: range, only: Sequence[str] = ()) -> Iterator[tuple[int, collections.Counter[str], str | None]]:
    """Tell these stories, with all kinds of faults or only some, as they come to an end."""
    told = functools.partial(_tell_only, only)
    with multiprocessing.get_context("fork").Pool(PROCESSES, maxtasksperchild=STORIES_EACH) as pool:
        yield from pool.imap_unordered(told, seeds, chunksize=CHUNK)


def _tell_only(only: Sequence[str], seed: int) -> tuple[int, collections.Counter[str], str | None]:
    return tell(seed, draw(seed, LENGTH_S, only))


def report(seed: int, broken: str) -> None:
    faults = shrink(seed)
    silence()
    story = Story(seed, faults)
    try:
        story.run()
        broken = f"{broken}\n(not broken when told alone: not deterministic)"
    except Exception as error:  # noqa: BLE001 - it is what we want to see
        broken = str(error)
    print(f"\nseed {seed}: {broken}\nwith these faults:")
    print("\n".join(f"  {fault}" for fault in faults) or "  none")
    print("the end of its log:\n  " + "\n  ".join(story.watch.tail))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one story alone")
    parser.add_argument("--show", action="store_true", help="with --seed: print its log's end")
    options = parser.parse_args()
    if options.seed is not None:
        silence()
        story = Story(options.seed)
        broken = tell(options.seed)[2]
        if broken is not None:
            report(options.seed, broken)
            return 1
        story.run()
        print(f"seed {options.seed}: {len(story.disk.log._rows)} events, {story.loop.steps} steps, nothing broken")
        print("\n".join(story.watch.tail) if options.show else f"log digest {story.digest()}")
        return 0
    return run_many(range(options.first, options.first + options.seeds))


def run_many(seeds: range) -> int:
    began, broken = time.monotonic(), {}
    coverage: collections.Counter[str] = collections.Counter()
    for told, (seed, covered, what) in enumerate(many(seeds), 1):
        coverage.update(covered)
        if what is not None:
            broken[seed] = what
        if told % PROGRESS_EVERY == 0:
            print(f"{told} of {len(seeds)} stories, {time.monotonic() - began:.0f} s, {len(broken)} broken", flush=True)
    print(f"\n{len(seeds)} stories in {time.monotonic() - began:.0f} s; covered, how often:")
    for what, count in sorted(coverage.items()):
        print(f"  {count:8,}  {what}")
    never = unseen(coverage) if len(seeds) >= EXPECTED_FROM else []
    if never:
        print(f"\nthis never happened: {', '.join(never)}")
    for seed in sorted(broken)[:3]:
        report(seed, broken[seed])
    print(f"\n{len(seeds) - len(broken)} passed, {len(broken)} failed")
    return 1 if broken or never else 0


if __name__ == "__main__":
    sys.exit(main())
