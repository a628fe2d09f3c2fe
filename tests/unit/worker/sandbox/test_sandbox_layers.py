"""Each layer by itself: what it refuses alone, and what gets through when it alone is missing.

What is expected comes from the table of attempts (`stopped_by`), so the table is what is tested: for every set of
layers tried here, exactly the attempts that it says are refused are refused. A layer that did nothing, a filter that
forgot a call, or an attempt that fails for another reason than the layer it names makes one of these fail.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.unit.worker.sandbox.sandbox_bench import MAY_BE_ABSENT, confined, got_through, layers_of, stopped_by, untried
from tests.unit.worker.sandbox.sandbox_cases import Case, Seen
from tests.unit.worker.sandbox.test_sandbox import pytestmark as needs_kernel
from worker.sandbox.attempts import TRIALS
from worker.sandbox.confinement import LAYERS

pytestmark = needs_kernel

SETS_AT_RANDOM = 40
ACTIONS = {trial.action for trial in TRIALS}
# What no other layer refuses. `raise_limit` needs two, and is on both lists.
ONLY = {
    "network_namespace": set(),
    "descriptors": {"read_by_descriptor"},
    "no_new_privs": {"gain_rights"},
    "not_dumpable": set(),
    "rlimits": {"grow_file", "raise_limit"},
    "landlock_files": {
        "read_outside",
        "read_system_file",
        "read_by_link",
        "list_outside",
        "write_outside",
        "write_artifact",
        "link_outside",
    },
    "landlock_tcp": set(),
    "landlock_scopes": set(),
    "seccomp": {
        "unix_connect",
        "netlink_socket",
        "io_uring",
        "change_mode",
        "make_process",
        "replace_itself_from_memory",
        "unshare",
        "shared_memory",
        "keyring",
    },
    "capabilities": {"change_groups"},
}


def but(layer: str) -> tuple[str, ...]:
    return tuple(each for each in LAYERS if each != layer)


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, ...], Seen]:
    """Every set of layers that the tests below ask for, confined once."""
    rng = random.Random(20_26)
    sets = [(layer,) for layer in LAYERS] + [but(layer) for layer in LAYERS]
    sets += [tuple(each for each in LAYERS if rng.random() < 0.5) for _ in range(SETS_AT_RANDOM)]
    return dict(zip(sets, asyncio.run(confined([Case(layers=layers) for layers in sets])), strict=True))


@pytest.fixture(scope="module")
def nobody() -> dict[tuple[str, ...], Seen]:
    """The same for an ordinary user, to whom the kernel gives Landlock and seccomp only after no_new_privs."""
    sets = [but(layer) for layer in LAYERS] + [("no_new_privs", layer) for layer in LAYERS if layer != "no_new_privs"]
    return dict(zip(sets, asyncio.run(confined([Case(layers, nobody=True) for layers in sets])), strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_alone_it_refuses_its_attempts_and_no_other(seen: dict[tuple[str, ...], Seen], layer: str) -> None:
    alone = seen[(layer,)]
    assert layers_of(alone) == {layer}
    assert got_through(alone) == ACTIONS - stopped_by(alone, [layer]) - untried(alone)
    assert not alone.proof.proven


@pytest.mark.parametrize("layer", LAYERS)
def test_without_it_what_only_it_stops_gets_through(seen: dict[tuple[str, ...], Seen], layer: str) -> None:
    without = seen[but(layer)]
    assert layers_of(without) == set(but(layer))
    assert without.proof.missing == [f"{layer}: switched off"]
    passed = got_through(without) | untried(without) & ONLY[layer]
    expected = ONLY[layer] if layer != "capabilities" or "raise_limit" not in passed else ONLY[layer] | {"raise_limit"}
    assert passed == expected
    assert got_through(without) == ACTIONS - stopped_by(without, but(layer)) - untried(without)
    assert without.proof.proven == (not got_through(without))


def test_any_set_of_layers_refuses_what_the_table_says(seen: dict[tuple[str, ...], Seen]) -> None:
    assert len(seen) >= 2 * len(LAYERS) + SETS_AT_RANDOM // 2
    for layers, one in seen.items():
        assert untried(one) <= MAY_BE_ABSENT
        assert got_through(one) == ACTIONS - stopped_by(one, layers) - untried(one), layers


def test_an_ordinary_user_gets_what_the_table_says(nobody: dict[tuple[str, ...], Seen]) -> None:
    for layers, one in nobody.items():
        assert untried(one) <= MAY_BE_ABSENT | {"change_groups"}
        assert got_through(one) == ACTIONS - stopped_by(one, layers_of(one)) - untried(one), layers
    without = nobody[but("no_new_privs")]
    assert not layers_of(without) & {"no_new_privs"}
    assert not without.proof.proven


def test_memory_is_hidden_from_others_by_one_layer(seen: dict[tuple[str, ...], Seen]) -> None:
    """No attempt of the process's own can show this, so another process of its user tries."""
    assert seen[but("not_dumpable")].memory_read_by_another
    assert not seen[but("seccomp")].memory_read_by_another
    assert seen[but("not_dumpable")].dumpable == 1
    assert seen[but("seccomp")].dumpable == 0


def test_what_may_be_read_may_not_be_run(seen: dict[tuple[str, ...], Seen]) -> None:
    for layers, one in seen.items():
        assert one.readable_program_ran == (not {"landlock_files", "seccomp"} & set(layers)), layers


def test_each_layer_is_stopping_something() -> None:
    stopping = {layer for trial in TRIALS for enough in trial.stopped_by for layer in enough}
    assert stopping == set(LAYERS) - {"not_dumpable"}
    assert set(ONLY) == set(LAYERS)
