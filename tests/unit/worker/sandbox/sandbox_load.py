"""Loads a model on a kernel that answers some calls otherwise: `python -m tests.unit.worker.sandbox.sandbox_load`.

The question comes in on stdin and the answer goes out on stdout. The filter is under everything that follows, so the
model process gets it however it is made; nothing in the worker knows of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.codes import Refusal
from schemas.profiles import RuntimeProfile
from tests.unit.worker.sandbox.sandbox_cases import answer_with
from worker.launch.launching import Launcher
from worker.memory.accelerator import NoAccelerator
from worker.memory.device_watch import DeviceWatch
from worker.model import frames
from worker.model.loading import load_model
from worker.sandbox import kernel
from worker.sandbox.decoys import Decoys

# Read, or let go of by one that had opened it for reading: what is only mapped is not told of before.
READ = 0x01 | 0x10  # IN_ACCESS, IN_CLOSE_NOWRITE


class Question(Struct, frozen=True):
    folder: str
    weights: str
    state: str
    answers: dict[int, int]
    require_offline_proof: bool = True


class Answer(Struct, frozen=True):
    """`code` and `message` of the refusal, or empty; the stages seen; whether anybody read the weights."""

    code: str
    message: str
    stages: list[str]
    weights_read: bool


async def load(question: Question) -> Answer:
    profile = RuntimeProfile(
        adapter="sentence_transformers",
        task="embedding",
        require_offline_proof=question.require_offline_proof,
    )
    stages: list[str] = []
    launcher = Launcher.open(Path(question.state), None)
    decoys = await Decoys.open(Path(question.state))
    watch = kernel.checked(kernel.libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK)))
    weights = os.fsencode(question.weights)
    kernel.checked(kernel.libc.inotify_add_watch(ctypes.c_int(watch), weights, ctypes.c_uint32(READ)))
    code = message = ""
    try:
        model = await load_model(
            launcher, decoys.targets, question.folder, profile, frames.Source("artifact", "profile", "1"),
            DeviceWatch(NoAccelerator()), stages.append,
        )  # fmt: skip
        await model.process.kill()
    except Refusal as refusal:
        code, message = str(refusal.code), refusal.message
    finally:
        await decoys.close()
        await launcher.close()
    return Answer(code, message, stages, _something_to_read(watch))


def _something_to_read(watch: int) -> bool:
    try:
        return bool(os.read(watch, 4_096))
    except BlockingIOError:
        return False


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    if question.answers:
        answer_with(question.answers)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(load(question))))


if __name__ == "__main__":
    main()
