"""A few stories in every test run, and that a seed tells the same story each time. Thousands: `make sim`."""

from __future__ import annotations

import collections
import multiprocessing

from tests.simulation.__main__ import PROCESSES, fingerprint, many
from tests.simulation.coverage import EXPECTED, unseen
from tests.simulation.faults import KINDS, draw
from tests.simulation.story import LENGTH_S

SEEDS = range(40)


def test_stories_break_no_invariant_and_cover_what_they_are_for() -> None:
    covered: set[str] = set()
    for seed, coverage, broken in many(SEEDS):
        assert broken is None, f"seed {seed}: {broken}; run `python -m tests.simulation --seed {seed}`"
        covered.update(coverage)
    seen = {what.split(" in ")[0] for what in covered}
    assert {"work.completed.v1", "evidence.rejected.v1", "session.lost.v1", "lease.ended.v1"} <= seen
    assert sum(f"fault {kind}" in covered for kind in KINDS) >= len(KINDS) // 2


def test_what_never_happened_is_named() -> None:
    covered = collections.Counter(dict.fromkeys(EXPECTED, 1))
    assert unseen(covered) == []
    del covered["fault foreign memory"]
    assert unseen(covered) == ["fault foreign memory"]


def test_a_seed_tells_the_same_story_each_time() -> None:
    seed = next(seed for seed in SEEDS if len({fault.kind for fault in draw(seed, LENGTH_S)}) >= 3)
    with multiprocessing.get_context("fork").Pool(PROCESSES, maxtasksperchild=1) as pool:
        first, second = pool.map(fingerprint, [seed, seed], chunksize=1)
    assert first == second
