"""The ground of the sandbox tests: a worker's decoys, an artifact, and the processes that are confined among them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.unit.worker.sandbox.sandbox_cases import NOBODY, Case, Seen, Work
from worker.sandbox import capabilities
from worker.sandbox.attempts import TRIALS
from worker.sandbox.decoys import Decoys
from worker.sandbox.escape import Trial

ROOT = Path(__file__).resolve().parents[4]
CAP_SYS_RESOURCE = 24
INTO_ANOTHER = {"read_process", "trace_process"}
# What a machine may lack. Everything else can be tried by root on any.
MAY_BE_ABSENT = {"tcp_connect_far", "io_uring", "keyring"}


async def confined(cases: list[Case]) -> list[Seen]:
    """Each case in a fresh process, in order. The decoys belong to the user of the cases, as a worker's do."""
    seen: dict[int, Seen] = {}
    for nobody in (False, True):
        numbers = [number for number, case in enumerate(cases) if case.nobody == nobody]
        if numbers:
            told = await _confined([cases[number] for number in numbers], nobody=nobody)
            seen.update(zip(numbers, told, strict=True))
    return [seen[number] for number in range(len(cases))]


async def _confined(cases: list[Case], *, nobody: bool) -> list[Seen]:
    # Not pytest's own folder: an ordinary user has no way into it.
    base = Path(tempfile.mkdtemp(prefix="tenure-sandbox-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.chmod(0o711)
        for name in ("folder", "scratch", "state"):
            (base / name).mkdir()
            (base / name).chmod(0o755)
        (base / "folder" / "weights").write_text("weights can be read")
        decoys = await Decoys.open(base / "state")
        try:
            if nobody:
                _give_to_nobody(base, decoys)
            return await asyncio.to_thread(_run, base, decoys, cases)
        finally:
            await decoys.close()


def _give_to_nobody(base: Path, decoys: Decoys) -> None:
    outside = Path(decoys.targets.outside_folder)
    sockets = Path(decoys.targets.unix_socket)
    for path in (outside, *outside.iterdir(), sockets.parent, sockets, base / "folder" / "weights"):
        os.chown(path, NOBODY, NOBODY)


def _run(base: Path, decoys: Decoys, cases: list[Case]) -> list[Seen]:
    work = Work(decoys.targets, str(base / "folder"), str(base / "scratch"), cases)
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.worker.sandbox.sandbox_cases"],
        input=msgspec.json.encode(work),
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=list[Seen])


def layers_of(seen: Seen) -> set[str]:
    return {applied.split()[0] for applied in seen.proof.applied}


def got_through(seen: Seen) -> set[str]:
    return {attempt.action for attempt in seen.proof.attempts if attempt.tried and not attempt.refused}


def untried(seen: Seen) -> set[str]:
    return {attempt.action for attempt in seen.proof.attempts if not attempt.tried}


def stopped_by(seen: Seen, layers: Iterable[str]) -> set[str]:
    """What the table of attempts says that these layers refuse, for a process with these rights."""
    return {trial.action for trial in TRIALS if any(enough <= set(layers) for enough in _enough(trial, seen))}


def _enough(trial: Trial, seen: Seen) -> list[frozenset[str]]:
    enough = list(trial.stopped_by)
    if trial.action == "raise_limit" and not seen.held >> CAP_SYS_RESOURCE & 1:
        enough.append(frozenset({"rlimits"}))  # without that right there is none to drop first
    if trial.action in INTO_ANOTHER and not seen.held >> capabilities.CAP_SYS_PTRACE & 1:
        enough.remove(frozenset({"capabilities"}))  # two processes without rights are equals
        if "network_namespace in a user namespace" in seen.proof.applied:
            enough.append(frozenset({"network_namespace"}))  # and in two user namespaces they aren't
    return enough
