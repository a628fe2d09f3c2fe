"""The model process: `python -m worker.model.child_main <link fd> <parent pid>`.

One process, one model, one thread of control. It dies with its parent (the kernel sees to that; a parent
that was gone before is noticed), answers each request of `worker.model.frames` in order and ends when the link
closes or after `Unload`. Inference runs inline: a thread would cost latency and throughput. It never
speaks to the bus; what it may reach is decided by `Confine`, the first request.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from schemas.codes import Code
from schemas.evidence import Health
from schemas.profiles import RuntimeProfile
from schemas.serving import Answer
from schemas.tasks.requests import Request, Result
from schemas.tasks.text import TextChunk
from worker.adapters import registry
from worker.adapters.contract import RuntimeAdapter
from worker.adapters.guard import refusal_of
from worker.adapters.torch_runtime import AloneTurn
from worker.memory.allocator import AllocatorReading, read_allocator
from worker.model import frames
from worker.model.golden import ask_goldens
from worker.sandbox import kernel, proof

EXIT_DONE = 0
EXIT_PARENT_GONE = 70
PROCESS_NAME = "tenure-model"  # as process lists show it, however it was started
FRAMES_AHEAD_MAX = 64  # read in one look while a batch is computed
ANSWER_BYTES_MAX = frames.FRAME_BYTES_MAX - 1024 * 1024  # of the answers in one frame, framing left out

_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_encoder = msgspec.msgpack.Encoder()


class Child:
    """Holds the adapter between requests, and what came over the link while it computed."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._adapter: RuntimeAdapter | None = None
        self._profile: RuntimeProfile | None = None
        self._source: frames.Source | None = None
        self._ahead: deque[frames.Request | None] = deque()

    @property
    def adapter(self) -> RuntimeAdapter:
        if self._adapter is None:
            raise RuntimeError("Prepare comes first")
        return self._adapter

    def answer(self, request: frames.Request) -> frames.Answer | None:
        """None for what has no answer."""
        match request:
            case frames.Confine():
                kept = [self._link.fileno()]
                return frames.Confined(proof.isolate(request.policy, request.targets, kept))
            case frames.Prepare():
                self._profile, self._source = request.profile, request.source
                self._adapter = registry.adapter_of(request.profile.adapter)
                return frames.Prepared(self._adapter.prepare(request.profile), self._allocator())
            case frames.Start():
                return self.adapter.start(Path(request.folder))
            case frames.CheckHealth():
                return frames.HealthSeen(self._health(golden=request.golden), self._allocator())
            case frames.Invoke():
                return self._invoke(request)
            case frames.Stop():
                return None  # its Invoke has been answered
            case frames.Unload():
                before = self._allocator()
                self.adapter.unload()
                return frames.UnloadedModel(before, self._allocator())

    def _allocator(self) -> AllocatorReading:
        """What torch counts on the profile's device, whatever adapter runs on it."""
        profile = self._profile
        device = f"cuda:{profile.device_index}" if profile is not None and profile.device == "cuda" else "cpu"
        return read_allocator(sys.modules.get("torch"), device)

    def _health(self, *, golden: bool) -> Health:
        health = self.adapter.health()
        if not golden or not health.capability or self._profile is None:
            return health
        seen = ask_goldens(self._profile, lambda requests: self.adapter.invoke(requests, AloneTurn()))
        if not seen:
            return health
        missed = [f"{one.name}: {one.detail}" for one in seen if not one.passed]
        return msgspec.structs.replace(health, golden=seen, capability=not missed, detail="; ".join(missed))

    def _invoke(self, invoke: frames.Invoke) -> frames.Batch:
        """Decode, compute, encode: the parent passes bytes on."""
        requests = [_requests.decode(body) for body in invoke.requests]
        begun = time.perf_counter()
        results = self.adapter.invoke(requests, LinkTurn(self._link, invoke.number, self._ahead))
        compute_ms = (time.perf_counter() - begun) * 1_000.0
        if len(results) != len(requests):
            raise RuntimeError(f"the adapter gave {len(results)} results to {len(requests)} requests")
        return self._batch(invoke.number, [self._answered(result, compute_ms) for result in results])

    def _batch(self, number: int, answers: list[frames.Answered | frames.Refused]) -> frames.Batch:
        """The frame of all answers; what it has no room for goes ahead, each answer in a frame of its own."""
        batch: list[frames.Answered | frames.Refused | frames.Sent] = []
        room = ANSWER_BYTES_MAX
        for index, answer in enumerate(answers):
            size = len(answer.body) if isinstance(answer, frames.Answered) else 0
            if isinstance(answer, frames.Refused) or size <= room:
                room -= size
                batch.append(answer)
            elif size > ANSWER_BYTES_MAX:
                message = f"the answer takes {size} bytes; the bound is {ANSWER_BYTES_MAX}"
                batch.append(frames.Refused(Code.INPUT_TOO_LARGE, message))
            else:
                frames.send_answer(self._link, frames.Early(number, index, answer.body))
                batch.append(frames.Sent())
        return frames.Batch(batch)

    def _answered(self, result: Result | frames.Refused, compute_ms: float) -> frames.Answered | frames.Refused:
        if isinstance(result, frames.Refused) or self._source is None:
            return result if isinstance(result, frames.Refused) else frames.Refused(Code.INTERNAL_ERROR, "no source")
        source = self._source
        answer = Answer(result, source.artifact_id, source.profile_id, source.generation, compute_ms)
        return frames.Answered(_encoder.encode(answer))

    def step(self) -> bool:
        """Answer one request; False when there is nothing more to do."""
        request = self._ahead.popleft() if self._ahead else frames.receive_request(self._link)
        if request is None:
            return False
        answer: frames.Answer | None
        try:
            answer = self.answer(request)
        except Exception as error:  # noqa: BLE001 - whatever a runtime raises becomes a typed answer
            loading = isinstance(request, frames.Prepare | frames.Start)
            answer = refusal_of(error, Code.LOAD_FAILED if loading else Code.INTERNAL_ERROR)
        if answer is not None:
            frames.send_answer(self._link, answer)
        return not isinstance(request, frames.Unload)


class LinkTurn:
    """The adapter's way to the askers of one Invoke, over the link. What else comes meanwhile waits in `ahead`."""

    def __init__(self, link: socket.socket, number: int, ahead: deque[frames.Request | None]) -> None:
        self._link = link
        self._number = number
        self._ahead = ahead
        self._stopped: set[int] = set()
        self._parent_gone = False

    def stopped(self, index: int) -> bool:
        for _ in range(FRAMES_AHEAD_MAX):
            if self._parent_gone or not select.select([self._link], [], [], 0)[0]:
                break
            request = frames.receive_request(self._link)
            if request is None:  # nobody waits for anything
                self._parent_gone = True
                self._ahead.append(None)
            elif not isinstance(request, frames.Stop):
                self._ahead.append(request)
            elif request.number == self._number:
                self._stopped.add(request.index)
        return self._parent_gone or index in self._stopped

    def partial(self, index: int, chunk: TextChunk) -> None:
        frames.send_answer(self._link, frames.Partial(self._number, index, _encoder.encode(chunk)))


def die_with(parent_pid: int) -> bool:
    """From now on the kernel ends this process when its parent ends. False where the parent is another already."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid  # it may have gone before the kernel knew that we want to die with it


def serve(link_handle: int) -> int:
    """Answer what comes over the link until it closes or the model is unloaded; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is for the parent to act on
    kernel.name_process(PROCESS_NAME)
    with socket.socket(fileno=link_handle) as link:
        child = Child(link)
        while child.step():
            pass
    return EXIT_DONE


def main(arguments: list[str]) -> int:
    link_handle, parent_pid = int(arguments[0]), int(arguments[1])
    if not die_with(parent_pid):
        return EXIT_PARENT_GONE
    os.set_inheritable(link_handle, False)
    return serve(link_handle)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # The interpreter's own end would tear the runtime down for some 100 ms; the kernel takes it all back at once.
    os._exit(code)
