"""The simulator misses each safeguard that is taken out, within SEEDS_MAX stories and by the checker meant for it."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import many
from tests.simulation.checkers import Checker
from tests.simulation.mutations import MUTATIONS

SEEDS_MAX = 2_000
CHECKERS = [checker.__name__ for checker in Checker.__subclasses__()]


def test_every_invariant_has_a_safeguard_that_is_taken_out() -> None:
    assert {name[0] for name in MUTATIONS} >= set("123456789")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_safeguard_that_is_taken_out_is_missed(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.made():
        stories = many(range(SEEDS_MAX), mutation.faults)
        found = next(((seed, what) for seed, _, what in stories if what is not None), None)
    assert found is not None, f"no story of {SEEDS_MAX} notices that the {name} is gone"
    noticed_by = found[1].partition(": ")[0]
    assert noticed_by in ([mutation.by.__name__] if mutation.by is not Checker else CHECKERS), found
    print(f"{name}: seed {found[0]}: {found[1]}")
