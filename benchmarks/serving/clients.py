"""Clients in a process of their own: N of them, each with one request of one sentence outstanding, on asyncio.

    python -m benchmarks.serving.clients bus  URL SUBJECT CLIENTS COUNT PATH
    python -m benchmarks.serving.clients http URL MODEL   CLIENTS COUNT PATH

They are light: requests are built beforehand, answers are kept as bytes and decoded after the clock has stopped; all
clients of the bus share one connection, each client of HTTP keeps one open. The vectors go to PATH (.npy, in the
order of the requests); a line of JSON tells the rest. Answers of one batch of ours say the same `compute_ms`, to the
last bit: that is how the number of batches is known.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy
import uvloop

from benchmarks.rawload import Raw, connected
from benchmarks.serving.sentences import sentence
from schemas.serving import Answer, ServeAnswer
from schemas.tasks.text import EmbedRequest

LIMIT_S = 120.0
HEAD_END = b"\r\n\r\n"


class Clients:
    """Gives each client its next request until `count` are answered. `send(client, number)` puts one on the wire."""

    def __init__(self, clients: int, count: int, send: Callable[[int, int], None]) -> None:
        self._clients = clients
        self._count = count
        self._put = send
        self._sent = 0
        self._answered = 0
        self._under_way = [(0, 0.0)] * clients
        self.answers: list[bytes] = [b""] * count
        self.latencies_ms = [0.0] * count
        self.done = asyncio.Event()

    def start(self) -> None:
        for client in range(min(self._clients, self._count)):
            self._next(client)

    def _next(self, client: int) -> None:
        number = self._sent
        self._sent += 1
        self._under_way[client] = (number, time.perf_counter())
        self._put(client, number)

    def answered(self, client: int, body: bytes) -> None:
        number, begun = self._under_way[client]
        self.latencies_ms[number] = (time.perf_counter() - begun) * 1000
        self.answers[number] = body
        self._answered += 1
        if self._sent < self._count:
            self._next(client)
        elif self._answered == self._count:
            self.done.set()


class Bus(Raw):
    """One connection; the subscription with a client's number has its answers."""

    def __init__(self, url: str, subject: str, clients: int, count: int) -> None:
        inbox = "_INBOX.bench"
        super().__init__(url, {1 + client: f"{inbox}.{client}" for client in range(clients)})
        encode = msgspec.msgpack.Encoder().encode
        self._bodies = [encode(EmbedRequest(texts=[sentence(number)])) for number in range(count)]
        self._heads = [f"PUB {subject} {inbox}.{client} ".encode() for client in range(clients)]
        self.clients = Clients(clients, count, self._send)

    def _send(self, client: int, number: int) -> None:
        body = self._bodies[number]
        self.transport.write(b"%b%d\r\n%b\r\n" % (self._heads[client], len(body), body))

    def on_message(self, subscription: bytes, data: bytes, start: int, end: int) -> None:
        self.clients.answered(int(subscription) - 1, data[start:end])


class Keeping(asyncio.Protocol):
    """One HTTP/1.1 connection that stays open, one request at a time; answers say their `content-length`."""

    def __init__(self, client: int, on_body: Callable[[int, bytes], None]) -> None:
        self._client = client
        self._on_body = on_body
        self._buffer = b""
        self._end = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._end:
            head = self._buffer.find(HEAD_END)
            if head < 0:
                return
            lines = self._buffer[:head].lower().split(b"\r\n")
            if b" 200 " not in lines[0]:
                raise RuntimeError(self._buffer.decode(errors="replace"))
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
            self._start, self._end = head + len(HEAD_END), head + len(HEAD_END) + length
        if len(self._buffer) >= self._end:
            body, self._buffer, self._end = self._buffer[self._start : self._end], b"", 0
            self._on_body(self._client, body)


async def over_the_bus(url: str, subject: str, clients: int, count: int) -> Clients:
    bus = await connected(Bus(url, subject, clients, count), url)
    return bus.clients


async def over_http(url: str, model: str, clients: int, count: int) -> Clients:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    requests = []
    for number in range(count):
        wanted = {"model": model, "input": [sentence(number)], "encoding_format": "base64"}
        body = json.dumps(wanted).encode()
        head = f"POST /embeddings HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        requests.append(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    connections: list[Keeping] = []
    load = Clients(clients, count, lambda client, number: connections[client].transport.write(requests[number]))
    loop = asyncio.get_running_loop()
    for client in range(clients):
        _, connection = await loop.create_connection(partial(Keeping, client, load.answered), host, port)
        connections.append(connection)
    return load


def of_ours(body: bytes) -> tuple[Any, float]:
    """The vector and what the batch took in the model process."""
    answer = msgspec.msgpack.decode(body, type=ServeAnswer)
    if not isinstance(answer, Answer):
        raise RuntimeError(f"no answer but {answer}")
    return numpy.frombuffer(answer.result.vectors, dtype="<f4"), answer.compute_ms


def of_http(body: bytes) -> tuple[Any, float]:
    embedding = json.loads(body)["data"][0]["embedding"]
    return numpy.frombuffer(base64.b64decode(embedding), dtype="<f4"), 0.0


async def measure(way: str, url: str, target: str, clients: int, count: int, path: str) -> dict[str, Any]:
    load = await (over_the_bus if way == "bus" else over_http)(url, target, clients, count)
    used, begun = time.process_time(), time.perf_counter()
    load.start()
    async with asyncio.timeout(LIMIT_S):
        await load.done.wait()
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
    found = [(of_ours if way == "bus" else of_http)(body) for body in load.answers]
    numpy.save(path, numpy.stack([vector for vector, _ in found]))
    compute_ms = sorted(compute for _, compute in found)
    return {
        "seconds": seconds, "cpu_s": cpu_s, "latencies_ms": load.latencies_ms, "batches": len(set(compute_ms)),
        "compute_ms": compute_ms[len(compute_ms) // 2],
    }  # fmt: skip


def main() -> None:
    way, url, target, clients, count, path = sys.argv[1:]
    print(json.dumps(uvloop.run(measure(way, url, target, int(clients), int(count), path))))


if __name__ == "__main__":
    main()
