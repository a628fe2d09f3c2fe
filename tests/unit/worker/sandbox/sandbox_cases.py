"""Confines processes for the sandbox tests (`python -m tests.unit.worker.sandbox.sandbox_cases`): cases in, results
out.

One process imports everything and forks a fresh one for each case, because layers can't be taken off; model processes
may come from such a server too, so nothing in the sandbox may need a new program. Each case is confined, asked what
it sees of itself, and ended.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.evidence import OfflineProof
from worker.sandbox import capabilities, kernel, landlock, proof, seccomp
from worker.sandbox.confinement import LAYERS
from worker.sandbox.escape import Targets
from worker.sandbox.paths import Policy

NOBODY = 65_534
SECRET = ctypes.create_string_buffer(b"s" * 16)
PR_SET_PTRACER = 0x59616D61


class Case(Struct, frozen=True):
    """`layers` are those switched on. `nobody`: as an ordinary user. `abi`: what Landlock says of itself.

    `answers`: system calls (by number) that this kernel answers with an error (errno) instead.
    """

    layers: tuple[str, ...] = LAYERS
    nobody: bool = False
    abi: int | None = None
    answers: dict[int, int] = {}
    threads: int = 0


class Work(Struct, frozen=True):
    targets: Targets
    folder: str
    scratch: str
    cases: list[Case]


class Seen(Struct, frozen=True):
    """`held` are the capabilities before confinement, the rest is what the process saw of itself afterwards."""

    proof: OfflineProof
    held: int
    kept_capabilities: int
    bounding: int
    user: int
    parent_death_signal: int
    dumpable: int
    limits: dict[str, int]
    open_files: list[str]
    weights: str
    scratch_written: bool
    thread_ran: bool
    readable_program_ran: bool
    memory_read_by_another: bool


def answer_with(answers: dict[int, int]) -> None:
    """A kernel that lacks these calls, or refuses them: a filter under all that comes later."""
    load, equal, done = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0)]
    for number, code in answers.items():
        steps += [(equal, 0, 1, number), (done, 0, 0, 0x0005_0000 | code)]
    steps.append((done, 0, 0, 0x7FFF_0000))
    seccomp.install(b"".join(struct.pack("HBBI", *step) for step in steps))


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # as a program that this user had started


def status(name: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1]
    raise LookupError(name)


def run(case: Case, work: Work, link: int) -> Seen:
    scratch = Path(work.scratch) / f"{os.getpid()}"
    scratch.mkdir()
    if case.nobody:
        os.chown(scratch, NOBODY, NOBODY)
    if case.answers:
        answer_with(case.answers)
    if case.nobody:
        become_nobody()
    if case.abi is not None:
        abi = case.abi
        landlock.abi = lambda: abi  # type: ignore[assignment]
    for _ in range(case.threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    held = capabilities.effective()
    asking = another()
    told = proof.isolate(Policy(work.folder, str(scratch)), work.targets, (link, asking), case.layers)
    os.write(asking, b"now")
    read_by_another = os.read(asking, 1) == b"y"
    thread = threading.Thread(target=lambda: ran.append(True))
    ran: list[bool] = []
    thread.start()
    thread.join()
    (scratch / "mine").write_text("own")
    return Seen(
        proof=told,
        held=held,
        kept_capabilities=capabilities.effective(),
        bounding=int(status("CapBnd"), 16),
        user=os.getuid(),
        parent_death_signal=_parent_death_signal(),
        dumpable=kernel.prctl(kernel.PR_GET_DUMPABLE),
        limits={
            name: resource.getrlimit(getattr(resource, name))[1]
            for name in ("RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_FSIZE")
        },
        open_files=sorted(
            f"{name} {os.readlink(f'/proc/self/fd/{name}')}"
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}")
        ),
        weights=Path(work.folder, "weights").read_text(),
        scratch_written=(scratch / "mine").read_text() == "own",
        thread_ran=ran == [True],
        readable_program_ran=_runs(_program_that_may_be_read()),
        memory_read_by_another=read_by_another,
    )


def another() -> int:
    """A process of the same user and no more rights than a model process keeps; told to, it reads this one's memory."""
    target = os.getpid()
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        capabilities.drop_all_but(1 << capabilities.CAP_DAC_READ_SEARCH)
        there.recv(3)
        try:
            with open(f"/proc/{target}/mem", "rb", buffering=0) as memory:
                memory.seek(ctypes.addressof(SECRET))
                there.send(b"y" if memory.read(len(SECRET)) == SECRET.raw else b"n")
        except OSError:
            there.send(b"n")
        os._exit(0)
    there.close()
    return here.detach()


def _program_that_may_be_read() -> str:
    """The loader of shared libraries is one, and lies among them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if Path(path).name.startswith("ld-"):
            return path
    raise LookupError("no loader")


def _runs(program: str) -> bool:
    Path(program).open("rb").close()
    quiet = [(os.POSIX_SPAWN_OPEN, handle, "/dev/null", os.O_WRONLY, 0) for handle in (1, 2)]
    try:
        pid = os.posix_spawn(program, [program, "--version"], {}, file_actions=quiet)
    except PermissionError:
        return False
    os.waitpid(pid, 0)
    return True


def _parent_death_signal() -> int:
    number = ctypes.c_int(0)
    kernel.checked(kernel.libc.prctl(ctypes.c_int(kernel.PR_GET_PDEATHSIG), ctypes.byref(number)))
    return number.value


def in_own_process(case: Case, work: Work) -> bytes:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            os.write(writing, msgspec.json.encode(run(case, work, writing)))
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, how = os.waitpid(pid, 0)
    if how != 0:
        raise RuntimeError(f"the process of {case} ended with {how}")
    return told


def waiting_nobody() -> tuple[int, int]:
    """A process of nobody that waits, and where its secret lies: the worker's own decoy is of the worker's user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        become_nobody()
        kernel.libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.write(writing, b"r")
        signal.pause()
    os.read(reading, 1)
    return pid, ctypes.addressof(SECRET)


def main() -> None:
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=Work)
    pid, address = waiting_nobody() if any(case.nobody for case in work.cases) else (0, 0)
    theirs = msgspec.structs.replace(
        work, targets=msgspec.structs.replace(work.targets, pid=pid, memory_address=address)
    )
    try:
        told = [in_own_process(case, theirs if case.nobody else work) for case in work.cases]
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    sys.stdout.buffer.write(b"[" + b",".join(told) + b"]")


if __name__ == "__main__":
    main()
