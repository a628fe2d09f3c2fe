"""The model process: `python -m worker.model.child_main <link fd> <parent pid>`.

One process, one model, one thread of control. It dies with its parent (the kernel sees to that; a parent
that was gone before is noticed), answers each request of `worker.model.frames` in order and ends when the link
closes or after `Unload`. Inference runs inline: a thread would cost latency and throughput. It never
speaks to the bus; what it may reach is decided by `Confine`, the first request.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from schemas.codes import Code, Refusal
from worker.adapters.contract import RuntimeAdapter
from worker.adapters.registry import ADAPTERS
from worker.model import frames
from worker.sandbox import escape, kernel
from worker.sandbox.confinement import confine

EXIT_DONE = 0
EXIT_PARENT_GONE = 70
TRACE_CHARACTERS_MAX = 2_000

# What runtimes say when memory is short, where they have no exception type of their own for it.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "not enough memory")


class Child:
    """Holds the adapter between requests."""

    def __init__(self) -> None:
        self._adapter: RuntimeAdapter | None = None

    @property
    def adapter(self) -> RuntimeAdapter:
        if self._adapter is None:
            raise RuntimeError("Prepare comes first")
        return self._adapter

    def answer(self, request: frames.Request) -> frames.Answer:
        match request:
            case frames.Confine():
                return frames.Confined(escape.attempt_all(confine(request.policy), request.targets))
            case frames.Prepare():
                self._adapter = ADAPTERS[request.profile.adapter]()
                return frames.Prepared(self._adapter.prepare(request.profile))
            case frames.Start():
                return self.adapter.start(Path(request.folder))
            case frames.CheckHealth():
                return frames.HealthSeen(self.adapter.health())
            case frames.EmbedBatch():
                return frames.Batch(self.adapter.embed(request.invocations))
            case frames.Unload():
                return frames.UnloadedModel(self.adapter.unload())

    def step(self, link: socket.socket) -> bool:
        """Answer one request; False when there is nothing more to do."""
        request = frames.receive_request(link)
        if request is None:
            return False
        try:
            answer = self.answer(request)
        except Refusal as refusal:
            answer = frames.Refused(refusal.code, refusal.message)
        except MemoryError as error:
            answer = frames.Refused(Code.OUT_OF_MEMORY, f"memory ran out: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises becomes a typed answer
            answer = _refusal_of(request, error)
        frames.send_answer(link, answer)
        return not isinstance(request, frames.Unload)


def _refusal_of(request: frames.Request, error: Exception) -> frames.Refused:
    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "OutOfMemoryError" or any(sign in text for sign in _OUT_OF_MEMORY):
        return frames.Refused(Code.OUT_OF_MEMORY, text[:TRACE_CHARACTERS_MAX])
    traceback.print_exc(file=sys.stderr)  # the parent keeps the end of it
    code = Code.LOAD_FAILED if isinstance(request, frames.Prepare | frames.Start) else Code.INTERNAL_ERROR
    return frames.Refused(code, text[:TRACE_CHARACTERS_MAX])


def main(arguments: list[str]) -> int:
    link_handle, parent_pid = int(arguments[0]), int(arguments[1])
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it went before the kernel knew that we want to die with it
        return EXIT_PARENT_GONE
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is for the parent to act on
    os.set_inheritable(link_handle, False)
    child = Child()
    with socket.socket(fileno=link_handle) as link:
        while child.step(link):
            pass
    return EXIT_DONE


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # The interpreter's own end would tear the runtime down for some 100 ms; the kernel takes it all back at once.
    os._exit(code)
