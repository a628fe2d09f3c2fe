"""The parent's end of a link: whatever the pieces in which bytes come, whole answers in order; what is none ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from worker.model import frames
from worker.model.link import BUFFER_BYTES, Link

WAIT_S = 5.0
RUNNERS = [asyncio.run, uvloop.run]  # the worker runs on uvloop, most of its tests on asyncio


def batch(*bodies: bytes) -> frames.Batch:
    return frames.Batch([frames.Answered(body) for body in bodies])


class Ends:
    """A link and the far end of its socket."""

    def __init__(self) -> None:
        self.answers: list[frames.Answer] = []
        self.malformed: list[str] = []
        self.near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.link: Any = None

    async def __aenter__(self) -> Ends:
        self.link = await Link.open(self.near, self.answers.append, self.malformed.append)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.link.close()
        self.far.close()
        await asyncio.sleep(0)

    async def put(self, data: bytes) -> None:
        async with asyncio.timeout(WAIT_S):
            await asyncio.get_running_loop().sock_sendall(self.far, data)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - the link sets no event
                await asyncio.sleep(0)


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("step", [1, 3, 7, 10_000])
def test_answers_come_whole_and_in_order_however_the_bytes_come(run: Any, step: int) -> None:
    sent = [batch(b"a"), frames.Partial(1, 0, b"piece"), batch(), batch(b"x" * 300, b"y"), frames.Facts(1, 2, 3)]
    stream = b"".join(map(frames.encode, sent))

    async def story() -> None:
        async with Ends() as ends:
            for begin in range(0, len(stream), step):
                await ends.put(stream[begin : begin + step])
                await asyncio.sleep(0)
            await ends.until(lambda: len(ends.answers) == len(sent))
            assert ends.answers == sent
            assert not ends.malformed

    run(story())


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("excess", [-40, -5, -4, -3, 0, 1, 3 * BUFFER_BYTES])
def test_a_frame_longer_than_the_buffer_is_read_whole_and_the_next_one_too(run: Any, excess: int) -> None:
    overhead = len(frames.encode(batch(b"z" * BUFFER_BYTES))) - BUFFER_BYTES
    long = batch(b"z" * (BUFFER_BYTES - overhead + 4 + excess))
    assert len(frames.encode(long)) == BUFFER_BYTES + 4 + excess

    async def story() -> None:
        async with Ends() as ends:
            await ends.put(frames.encode(batch(b"first")) + frames.encode(long) + frames.encode(batch(b"last")))
            await ends.until(lambda: len(ends.answers) == 3)
            assert ends.answers == [batch(b"first"), long, batch(b"last")]

    run(story())


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(
    "wrong",
    [(frames.FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"\x00\x00\x00\x00", b"\x00\x00\x00\x02\xff\xff"],
    ids=["over the bound", "empty", "no answer"],
)
def test_what_is_no_frame_of_ours_ends_the_link(run: Any, wrong: bytes) -> None:
    async def story() -> None:
        async with Ends() as ends:
            await ends.put(frames.encode(batch(b"before")) + wrong + frames.encode(batch(b"after")))
            await ends.until(lambda: bool(ends.malformed))
            assert ends.answers == [batch(b"before")]
            assert len(ends.malformed) == 1

            async def gone() -> bytes:
                return await asyncio.get_running_loop().sock_recv(ends.far, 1)

            assert await asyncio.wait_for(gone(), WAIT_S) == b""

    run(story())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_request_goes_out_whole_and_none_after_the_end(run: Any) -> None:
    request = frames.Invoke(1, [b"r" * (4 * BUFFER_BYTES)])
    body = frames.encode(request)

    async def story() -> None:
        async with Ends() as ends:
            ends.link.send(request)
            got = bytearray()
            async with asyncio.timeout(WAIT_S):
                while len(got) < len(body):
                    got += await asyncio.get_running_loop().sock_recv(ends.far, 65_536)
            assert bytes(got) == body
            ends.link.close()
            ends.link.send(request)

    run(story())
