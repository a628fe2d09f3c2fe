"""The fork server: a process that has imported the ML runtimes, and makes a model process of a copy of itself.

    python -m worker.launch.fork_server <control fd> <worker pid>

The worker talks to it over a socket pair, one message each way at a time: `Begin`, answered by `Ready` when the
imports are done; then `Fork` with two file handles (the link and the output of the model process), answered by
`Forked` or `Declined`. It ends when the worker does (the kernel sees to that) or closes the control socket. It reads
no model file and holds no secret, no connection and no device. It has no sandbox: a model process proves its own by
what works before it is on and fails afterwards, so it has to begin without one.

A copy has only the thread that made it, so a process with several threads can't be copied safely: the server counts
its threads before each fork and declines where there is more than one.

The copy is made twice over: the server's child forks the model process and ends, so that the model process becomes
the worker's own child (the worker is the reaper of what is below it). The worker then waits for it, signals it and
dies with it as if it had started it, and the end of the server touches no model process. The model process goes on
only when the worker is its parent. It takes the environment it was sent and nothing of the server's, keeps no file
handle but its link and its output, and has random states of its own. Only the seed of Python's string hashes is
the server's: all its model processes share it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from typing import NoReturn

import msgspec
from msgspec import Struct

from worker.model import child_main
from worker.sandbox import kernel

MESSAGE_BYTES_MAX = 65_536
HANDLES = 2  # the link and the output
FORK_SECONDS_MAX = 5.0  # how long a copy may take to say that it exists
ADOPTION_SECONDS_MAX = 5.0  # how long a model process waits for the worker to be its parent
ADOPTION_STEP_SECONDS = 0.000_2
EXIT_DONE = 0
EXIT_FAILED = 1


class Begin(Struct, frozen=True, tag="begin"):
    """What to import, and then to call (`module:function`): what libraries make once, for whatever model."""

    imports: list[str]
    warm: list[str]


class Ready(Struct, frozen=True, tag="ready"):
    """The imports are done. `missing` is what could not be imported or called, with the reason."""

    import_ms: float
    missing: list[str]


class Fork(Struct, frozen=True, tag="fork"):
    """The whole environment of a model process, and the folder that it starts in."""

    environment: dict[str, str]
    folder: str


class Forked(Struct, frozen=True, tag="forked"):
    pid: int


class Declined(Struct, frozen=True, tag="declined"):
    """The server can't do it; nothing was started."""

    reason: str


Request = Begin | Fork
Answer = Ready | Forked | Declined

encode = msgspec.json.Encoder().encode
decode_answer = msgspec.json.Decoder(Answer).decode
_decode_request = msgspec.json.Decoder(Request).decode


class ForkServer:
    """One control socket and the worker behind it."""

    def __init__(self, control: socket.socket, worker_pid: int) -> None:
        self._control = control
        self._worker_pid = worker_pid

    def step(self) -> bool:
        """Answer one message; False when the worker has closed the control socket."""
        body, handles, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, HANDLES)
        if not body:
            return False
        request = _decode_request(body)
        try:
            answer = self._begin(request) if isinstance(request, Begin) else self._fork(request, handles)
        finally:
            for handle in handles:
                os.close(handle)
        self._control.send(encode(answer))
        return True

    def _begin(self, begin: Begin) -> Answer:
        started = time.perf_counter()
        missing = []
        for name in (*begin.imports, *begin.warm):
            module, _, function = name.partition(":")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a library's warnings about itself are for those who load models
                    imported = importlib.import_module(module)
                    if function:
                        getattr(imported, function)()
            except Exception as error:  # noqa: BLE001 - the load that needs it will say what is wrong
                missing.append(f"{name}: {type(error).__name__}: {error}")
        # What is here now stays: the collector of a copy need not look at it, and its pages stay shared.
        gc.collect()
        gc.freeze()
        wrong = unfit()
        if wrong:
            return Declined(wrong)
        return Ready((time.perf_counter() - started) * 1_000.0, missing)

    def _fork(self, order: Fork, handles: list[int]) -> Answer:
        wrong = unfit()
        if wrong:
            return Declined(wrong)
        if len(handles) != HANDLES:
            return Declined(f"{len(handles)} file handles came with the order; {HANDLES} are needed")
        sys.stdout.flush()
        sys.stderr.flush()
        told, telling = os.pipe()
        try:
            between = os.fork()
        except OSError as error:
            os.close(told)
            os.close(telling)
            return Declined(f"fork: {error.strerror}")
        if between == 0:
            _fork_again(order, handles[0], handles[1], telling, self._worker_pid)
        os.close(telling)
        try:
            # A copy that has not said so by then has been stopped by somebody; it ends with this process's end.
            heard = select.select([told], [], [], FORK_SECONDS_MAX)[0] and os.read(told, 32)
        finally:
            os.close(told)
        if not heard:
            os.kill(between, signal.SIGKILL)
        os.waitpid(between, 0)
        return Forked(int(heard)) if heard else Declined("the copy did not come to be")


def unfit() -> str:
    """Why this process can't be copied now, or empty."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the fork server has {threads} threads"
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the handle of this very listing
            continue
        if target.startswith("/dev/nvidia"):
            return f"the fork server holds {target}: a device can't be shared with a copy"
    return ""


def _fork_again(order: Fork, link: int, output: int, telling: int, worker_pid: int) -> NoReturn:
    """In the server's child: make the model process and end, so that the worker inherits it."""
    try:
        if os.fork() == 0:
            _be_model_process(order, link, output, telling, worker_pid)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second server
        traceback.print_exc()
        os._exit(EXIT_FAILED)
    os._exit(EXIT_DONE)


def _be_model_process(order: Fork, link: int, output: int, telling: int, worker_pid: int) -> NoReturn:
    code = EXIT_FAILED
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.write(telling, str(os.getpid()).encode())
        os.close(telling)
        if _adopted(worker_pid) and child_main.die_with(worker_pid):
            _take_on(order)
            os.set_inheritable(link, False)
            _close_all_but((0, 1, 2, link))
            code = child_main.serve(link)
        else:
            code = child_main.EXIT_PARENT_GONE
    except BaseException:  # noqa: BLE001 - nothing may unwind into the server's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _adopted(worker_pid: int) -> bool:
    """Wait until the process between has ended and the worker is the parent."""
    until = time.monotonic() + ADOPTION_SECONDS_MAX
    while os.getppid() != worker_pid and time.monotonic() < until:
        time.sleep(ADOPTION_STEP_SECONDS)
    return os.getppid() == worker_pid


def _take_on(order: Fork) -> None:
    """The environment and folder of the order, and nothing that was remembered of the server's."""
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    tempfile.tempdir = None
    reseed()


def reseed() -> None:
    """Random states of its own for this process, not the server's. Python's `random` does so itself after a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # those of devices come to be with the device, after the fork


def _close_all_but(kept: tuple[int, ...]) -> None:
    for name in os.listdir("/proc/self/fd"):
        handle = int(name)
        if handle not in kept:
            try:
                os.close(handle)
            except OSError:  # the handle of this very listing
                continue


def main(arguments: list[str]) -> int:
    control_handle, worker_pid = int(arguments[0]), int(arguments[1])
    if not child_main.die_with(worker_pid):
        return child_main.EXIT_PARENT_GONE
    kernel.name_process("tenure-forks")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody can be waited for
    os.set_inheritable(control_handle, False)
    with socket.socket(fileno=control_handle) as control:
        server = ForkServer(control, worker_pid)
        while server.step():
            pass
    return EXIT_DONE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # the runtimes' own ends take some 100 ms; the kernel takes it all back at once
