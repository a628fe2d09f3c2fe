"""The whole sandbox on this kernel: everything is refused, the rest still works, and who it holds for.

CI skips nothing: a sandbox test that did not run must not look like one that passed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.unit.worker.sandbox.sandbox_bench import MAY_BE_ABSENT, confined, got_through, layers_of, untried
from tests.unit.worker.sandbox.sandbox_cases import NOBODY, Case, Seen
from worker.launch.processes import identify
from worker.sandbox import capabilities, landlock
from worker.sandbox.attempts import TRIALS
from worker.sandbox.attempts.network import NAME, question
from worker.sandbox.confinement import FILE_BYTES_MAX, LAYERS, OPEN_FILES_MAX
from worker.sandbox.decoys import ANSWER, Decoys


def _has_landlock() -> bool:
    try:
        return landlock.abi() >= 1
    except OSError:
        return False


IN_CI = os.environ.get("CI", "").lower() == "true"
pytestmark = pytest.mark.skipif(
    not IN_CI and not (_has_landlock() and os.geteuid() == 0), reason="needs root and a kernel with Landlock"
)


@pytest.fixture(scope="module")
def seen() -> dict[str, Seen]:
    cases = {
        "all": Case(),
        "none": Case(layers=()),
        "nobody": Case(nobody=True),
        "nobody none": Case(layers=(), nobody=True),
        "threads": Case(threads=2),
    }
    return dict(zip(cases, asyncio.run(confined(list(cases.values()))), strict=True))


def test_all_layers_refuse_everything(seen: dict[str, Seen]) -> None:
    proof = seen["all"].proof
    assert got_through(seen["all"]) == set()
    assert untried(seen["all"]) <= MAY_BE_ABSENT
    assert layers_of(seen["all"]) == set(LAYERS)
    assert proof.missing == []
    assert proof.proven


def test_without_layers_every_attempt_succeeds(seen: dict[str, Seen]) -> None:
    """So an attempt that fails inside was refused, and not aimed at nothing."""
    proof = seen["none"].proof
    assert got_through(seen["none"]) | untried(seen["none"]) == {trial.action for trial in TRIALS}
    assert untried(seen["none"]) <= MAY_BE_ABSENT
    assert proof.missing == [f"{layer}: switched off" for layer in LAYERS]
    assert not proof.proven
    assert all(attempt.outside for attempt in proof.attempts)


def test_an_ordinary_user_is_proven_too(seen: dict[str, Seen]) -> None:
    proof = seen["nobody"].proof
    assert seen["nobody"].user == NOBODY
    assert got_through(seen["nobody"]) == set()
    assert untried(seen["nobody"]) <= MAY_BE_ABSENT | {"change_groups"}
    assert proof.proven
    assert {missing.partition(":")[0] for missing in proof.missing} <= {"network_namespace", "not_dumpable"}
    assert not seen["nobody none"].proof.proven
    assert "read_outside" in got_through(seen["nobody none"])


def test_what_cannot_be_tried_is_told_and_is_no_proof(seen: dict[str, Seen]) -> None:
    (groups,) = (attempt for attempt in seen["nobody"].proof.attempts if attempt.action == "change_groups")
    assert (groups.tried, groups.refused) == (False, False)
    assert groups.detail == "could not be tried, outside: EPERM (Operation not permitted)"


@pytest.mark.parametrize("who", ["all", "nobody"])
def test_what_the_process_keeps(seen: dict[str, Seen], who: str) -> None:
    """Its artifact, its scratch folder, threads, the link, the death of its parent: and no more than those."""
    kept = seen[who]
    assert kept.weights == "weights can be read"
    assert kept.scratch_written
    assert kept.thread_ran
    assert kept.parent_death_signal == 9
    assert [name.partition(" ")[0] for name in kept.open_files][:3] == ["0", "1", "2"]
    assert len(kept.open_files) == 5  # and the two that the case asked to keep
    assert kept.kept_capabilities & ~(1 << capabilities.CAP_DAC_READ_SEARCH) == 0
    assert kept.limits == {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": OPEN_FILES_MAX, "RLIMIT_FSIZE": FILE_BYTES_MAX}
    assert kept.bounding == (0 if who == "all" else kept.bounding)


def test_a_process_with_threads_is_not_proven(seen: dict[str, Seen]) -> None:
    """Most layers would bind the calling thread alone."""
    proof = seen["threads"].proof
    assert layers_of(seen["threads"]) == {"descriptors", "not_dumpable", "rlimits", "seccomp"}
    assert "landlock_files: 3 threads run already, and it would bind only one" in proof.missing
    assert not proof.proven


async def test_decoys_are_there(tmp_path: Path) -> None:
    """What is aimed at: a name server that answers, a port that listens, a process that waits; all gone afterwards."""
    decoys = await Decoys.open(tmp_path)
    targets = decoys.targets
    waiting = identify(targets.pid)
    try:
        assert waiting is not None
        answer = await asyncio.to_thread(_ask, targets.udp_port)
        assert answer.endswith(socket.inet_aton(ANSWER))
        reader, writer = await asyncio.open_connection("127.0.0.1", targets.tcp_port)
        assert await reader.read() == b""
        writer.close()
        for where in (targets.unix_socket, targets.abstract_socket):
            reader, writer = await asyncio.open_unix_connection(where)
            assert await reader.read() == b""
            writer.close()
        if targets.far_address:
            assert not targets.far_address.startswith("127.")
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(targets.far_address, targets.far_port)
    finally:
        await decoys.close()
    assert identify(targets.pid) != waiting
    assert not Path(targets.outside_folder).exists()
    assert not Path(targets.unix_socket).exists()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", targets.tcp_port)


def _ask(port: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(10)
        asker.sendto(question(NAME), ("127.0.0.1", port))
        return asker.recv(512)
