"""Model processes however they are started: copied from a fork server or in a fresh interpreter.

Real processes, without an ML runtime: a fork server imports here what a test needs and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from tests.unit.worker.launch.own_processes import children
from worker.launch import forking
from worker.launch.fork_server import Begin
from worker.launch.launching import Launcher, beginning
from worker.launch.processes import Identity, Record, identify, is_alive, sweep, system_boot_id, write_record
from worker.model import frames
from worker.model.child import ModelProcess, child_environment
from worker.sandbox import kernel

PRELOADED = "tests.unit.worker.launch.preloaded"
SPY = RuntimeProfile(adapter="spy", task="embedding")
WAIT_S = 30.0
ANSWER_MS = 20_000.0
SOURCE = frames.Source("artifact", "profile", "1")
ways = pytest.mark.parametrize("way", ["forked", "fresh"])


@contextlib.asynccontextmanager
async def launching(state: Path, *modules: str, fresh: bool = False) -> AsyncIterator[Launcher]:
    before = children()  # servers that other tests of this session share
    launcher = Launcher.open(state, None if fresh else Begin([*modules, f"{PRELOADED}.spying"], []))
    try:
        yield launcher
    finally:
        await launcher.close()
    assert children() == before


@contextlib.asynccontextmanager
async def model(launcher: Launcher) -> AsyncIterator[ModelProcess]:
    process = await ModelProcess.spawn(launcher, SPY)
    try:
        yield process
    finally:
        await process.kill()


async def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        await asyncio.sleep(0.005)


async def seen_by(process: ModelProcess) -> dict[str, str]:
    answer = await process.ask(frames.Prepare(SPY, SOURCE), ANSWER_MS)
    assert isinstance(answer, frames.Prepared), answer
    return answer.versions


async def still_answers(process: ModelProcess) -> None:
    with pytest.raises(Refusal) as refused:  # nothing is prepared: that is an answer
        await process.ask(frames.CheckHealth(), ANSWER_MS)
    assert refused.value.code == Code.INTERNAL_ERROR


async def server_of(launcher: Launcher) -> int:
    server = launcher.fork_server
    assert server is not None
    await until(lambda: server.pid is not None, "the fork server")
    assert server.pid is not None
    return server.pid


@ways
async def test_it_is_a_child_in_a_session_of_its_own(tmp_path: Path, way: str) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher, model(launcher) as process:
        assert process.way == way
        pid = process.identity.pid
        assert pid in children()
        assert os.getsid(pid) == os.getpgid(pid) == pid
        await still_answers(process)
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "tenure-model"
        assert [path.stem for path in (tmp_path / "children").glob("*.json") if path.stem == str(pid)]
        assert process.scratch.is_dir()
    assert not process.scratch.exists()
    assert list((tmp_path / "children").glob("*.json")) == []
    assert list((tmp_path / "scratch").iterdir()) == []


@ways
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_the_signal_that_ended_it_is_told(tmp_path: Path, way: str, number: signal.Signals) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher:
        process = await ModelProcess.spawn(launcher, SPY)
        await still_answers(process)
        os.kill(process.identity.pid, number)
        ended = await process.wait_exit(ANSWER_MS)
        assert (ended.exit_code, ended.asked, ended.pid) == (-number, False, process.identity.pid)
        with pytest.raises(Refusal, match=number.name):
            await process.ask(frames.CheckHealth(), ANSWER_MS)


@ways
async def test_the_exit_code_and_the_last_output_are_told(tmp_path: Path, way: str) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher:
        process = await ModelProcess.spawn(launcher, SPY)
        process.expect_exit()
        with pytest.raises(Refusal, match="Prepare comes first"):
            await process.ask(frames.Unload(), ANSWER_MS)
        ended = await process.wait_exit(ANSWER_MS)
        assert (ended.exit_code, ended.asked) == (0, True)
        assert "Prepare comes first" in ended.output_tail  # the traceback that the process wrote


@ways
async def test_a_request_in_the_air_fails_with_how_it_ended(tmp_path: Path, way: str) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher, model(launcher) as process:
        await still_answers(process)
        os.kill(process.identity.pid, signal.SIGSTOP)
        asked = asyncio.create_task(process.ask(frames.CheckHealth(), ANSWER_MS))
        await asyncio.sleep(0)
        os.kill(process.identity.pid, signal.SIGKILL)
        with pytest.raises(Refusal, match="SIGKILL"):
            await asked


@ways
async def test_two_at_once_are_two(tmp_path: Path, way: str) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher:
        both = await asyncio.gather(*(ModelProcess.spawn(launcher, SPY) for _ in range(2)))
        assert [process.way for process in both] == [way] * 2
        assert both[0].identity != both[1].identity
        await both[0].kill()
        await still_answers(both[1])
        await both[1].kill()


async def test_a_copy_has_nothing_of_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_NATS_PASSWORD", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    left_open = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(left_open, True)
    async with launching(tmp_path, "numpy") as launcher, model(launcher) as process:
        seen = await seen_by(process)
        server = await server_of(launcher)
        assert "secret" not in Path(f"/proc/{server}/environ").read_text()
    os.close(left_open)
    assert json.loads(seen["environment"]) == child_environment(process.scratch, SPY)
    assert seen["folder"] == seen["temporary"] == str(process.scratch)
    handles = {int(name): target for name, target in json.loads(seen["handles"]).items() if target}
    assert len(handles) == 4, handles
    assert handles[0] == "/dev/null"
    assert handles[1] == handles[2]
    assert handles[1].startswith("pipe:")
    assert next(target for number, target in handles.items() if number > 2).startswith("socket:")
    assert (seen["session"], seen["parent"]) == (str(process.identity.pid), str(os.getpid()))
    assert seen["threads"] == "1"


async def test_copies_have_random_states_of_their_own(tmp_path: Path) -> None:
    async with launching(tmp_path, "numpy.random") as launcher:
        seen = []
        for _ in range(2):
            async with model(launcher) as process:
                seen.append(await seen_by(process))
        assert seen[0]["random"] != seen[1]["random"]
        assert seen[0]["numpy"] != seen[1]["numpy"] != ""
        assert seen[0]["hash"] == seen[1]["hash"]  # this one they share, and the docs say so


async def test_residents_outlive_the_fork_server(tmp_path: Path) -> None:
    async with launching(tmp_path) as launcher, model(launcher) as resident:
        first = await server_of(launcher)
        os.kill(first, signal.SIGKILL)
        assert launcher.fork_server is not None
        await until(lambda: launcher.fork_server.pid not in {None, first}, "the next fork server")
        await still_answers(resident)
        async with model(launcher) as another:
            assert another.way == "forked"
            await still_answers(another)
        await still_answers(resident)


async def test_a_fork_server_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "ANSWER_SECONDS_MAX", 0.2)
    async with launching(tmp_path) as launcher:
        first = await server_of(launcher)
        os.kill(first, signal.SIGSTOP)
        async with model(launcher) as process:
            assert process.way == "fresh"
            await still_answers(process)
        await until(lambda: identify(first) is None, "the end of the one that hung")
        assert await server_of(launcher) != first


async def test_a_server_with_a_thread_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "FAILURES_MAX", 2)
    async with launching(tmp_path, f"{PRELOADED}.threaded") as launcher, model(launcher) as process:
        assert process.way == "fresh"
        await still_answers(process)


async def test_a_thread_that_comes_later_is_seen_before_the_fork(tmp_path: Path) -> None:
    async with launching(tmp_path, f"{PRELOADED}.threaded_later") as launcher:
        first = await server_of(launcher)
        async with model(launcher) as process:
            assert process.way == "forked"
        os.kill(first, signal.SIGUSR1)
        await until(lambda: len(list(Path(f"/proc/{first}/task").iterdir())) == 2, "the thread")
        async with model(launcher) as process:
            assert process.way == "fresh"
            await still_answers(process)
        await until(lambda: launcher.fork_server.pid not in {None, first}, "the next fork server")  # type: ignore[union-attr]
        async with model(launcher) as process:
            assert process.way == "forked"


async def test_a_server_that_always_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "FAILURES_MAX", 2)
    async with launching(tmp_path, f"{PRELOADED}.ending") as launcher:
        assert launcher.fork_server is not None
        async with model(launcher) as process:
            assert process.way == "fresh"
        assert launcher._running is not None
        async with asyncio.timeout(WAIT_S):
            await asyncio.shield(launcher._running)
        async with model(launcher) as process:
            assert process.way == "fresh"
            await still_answers(process)


@ways
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 40])
async def test_a_cancelled_start_leaves_nothing(tmp_path: Path, way: str, turns: int) -> None:
    async with launching(tmp_path, fresh=way == "fresh") as launcher:
        if way == "forked":
            await server_of(launcher)
        before = children()
        for _ in range(3):
            start = asyncio.create_task(ModelProcess.spawn(launcher, SPY))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await start).kill()
        await until(lambda: children() == before, "all to be gone")
        async with model(launcher) as process:  # and the next one is not disturbed
            assert process.way == way
            await still_answers(process)
        records = [path.stem for path in (tmp_path / "children").glob("*.json")]
        assert records == [str(pid) for pid in before]
        assert len(list((tmp_path / "scratch").iterdir())) == len(before)


async def test_a_start_while_the_server_imports_waits_for_it(tmp_path: Path) -> None:
    async with launching(tmp_path) as launcher:
        assert launcher.fork_server is not None
        assert launcher.fork_server.pid is None
        async with model(launcher) as process:
            assert process.way == "forked"


async def test_cancelled_while_the_server_imports(tmp_path: Path) -> None:
    async with launching(tmp_path) as launcher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await ModelProcess.spawn(launcher, SPY)
        handles = len(os.listdir("/proc/self/fd"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await ModelProcess.spawn(launcher, SPY)
        assert len(os.listdir("/proc/self/fd")) == handles


async def test_no_handle_is_lost(tmp_path: Path) -> None:
    others = children()
    async with launching(tmp_path) as launcher:
        await server_of(launcher)
        before: int | None = None
        for _ in range(3):
            async with model(launcher) as process:
                await still_answers(process)
            with contextlib.suppress(asyncio.CancelledError):
                start = asyncio.create_task(ModelProcess.spawn(launcher, SPY))
                await asyncio.sleep(0.001)
                start.cancel()
                await (await start).kill()
            await until(lambda: len(children()) == len(others) + 1, "the server alone")
            await asyncio.sleep(0)
            handles = len(os.listdir("/proc/self/fd"))
            assert before in {None, handles}
            before = handles


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, int]]]:
    """A program that has one model process, and what it says of it."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.worker.launch.worker_alone", str(tmp_path)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            told = json.loads(await program.stdout.readline())
        assert told.pop("way") == "forked"
        yield program, told
    finally:
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        await program.wait()


async def test_killing_the_worker_ends_all(
    tmp_path: Path, alone: tuple[asyncio.subprocess.Process, dict[str, int]]
) -> None:
    program, told = alone
    pids = [told["model"], told["server"]]
    assert None not in [identify(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that they can't end themselves when their sockets close
    program.kill()
    await program.wait()
    await until(lambda: [identify(pid) for pid in pids] == [None, None], "the model process and the fork server to end")
    os.kill(told["left"], signal.SIGKILL)  # of a process that a model process made, only a living worker can know
    # What the kernel ended has left records; the next worker of the node takes them away.
    assert len(list((tmp_path / "children").glob("*.json"))) == 2
    assert sweep(tmp_path / "children") == 0
    assert list((tmp_path / "children").glob("*.json")) == []
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_what_a_model_process_leaves_behind_is_ended(
    alone: tuple[asyncio.subprocess.Process, dict[str, int]],
) -> None:
    program, told = alone
    assert identify(told["left"]) is not None
    assert os.getsid(told["left"]) == told["left"]
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.close()
    async with asyncio.timeout(WAIT_S):
        assert json.loads(await program.stdout.readline()) == [told["server"]]
        assert await program.wait() == 0
    assert identify(told["left"]) is None


async def test_a_fork_server_left_behind_is_swept(tmp_path: Path) -> None:
    async with launching(tmp_path) as launcher:
        pid = await server_of(launcher)
        server, me = identify(pid), identify(os.getpid())
        assert server is not None
        assert me is not None
        gone = Identity(me.pid, me.started + 1)  # as if an earlier worker had started it
        write_record(tmp_path / "children", Record(server, gone, system_boot_id(), str(tmp_path / "s")))
        assert await asyncio.to_thread(sweep, tmp_path / "children") == 1
        assert not is_alive(server)


async def test_the_reaper_is_what_it_was(tmp_path: Path) -> None:
    before = kernel.is_child_subreaper()
    async with launching(tmp_path):
        assert kernel.is_child_subreaper()
    assert kernel.is_child_subreaper() == before


def test_what_is_imported_beforehand_is_what_adapters_name() -> None:
    begin = beginning()
    assert "torch" in begin.imports
    assert len(set(begin.imports)) == len(begin.imports)
