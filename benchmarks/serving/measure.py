"""The rounds: for one sentence and for 8 and 32, one process, the bus and HTTP in turn; each round in another order.

What is compared has the same files (the very same: how the kernel keeps them decides how fast they are read), the same
sentences, threads and machine, and everything is up all the while: the plane idles while others are measured (its share
is told), infinity stands still. Every vector is held to the one the reference gave for that sentence alone; a
difference over DIFFERENCE_MAX ends the run. Processor time per sentence is of all that takes part: client, nats-server,
worker and model process here, client and server there.

    python -m benchmarks.serving [--quick]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy

from benchmarks.serving.deployed import deployed
from benchmarks.serving.infinity import MODEL, Infinity, Unavailable
from benchmarks.serving.sentences import SENTENCES
from benchmarks.serving.usage import Share, cpu_s
from schemas import subjects
from services.cli.demo.command import model_folder
from services.client import Client
from services.embedded.nats_conf import OPERATOR
from services.embedded.plane import Plane
from services.settings import Settings

THREADS = 2
# Sentences of a turn by width, and rounds.
FULL = ({1: 256, 8: 768, 32: 1_536}, 5)
QUICK = ({1: 64, 8: 128, 32: 256}, 2)
WARM_UP_REQUESTS = 64
IDLE_S = 3.0
PROGRAM_S = 180.0
DIFFERENCE_MAX = 1e-5  # of any component; batches are padded, so the last bits differ
INFINITY_COSINE_MIN = 0.999  # it runs releases of its own; that it is the same model must be seen all the same


class Reference:
    """The process that encodes without anything in between."""

    def __init__(self, child: asyncio.subprocess.Process, scratch: Path) -> None:
        self._child = child
        self._path = scratch / "reference.npy"

    @classmethod
    async def start(cls, folder: Path, scratch: Path) -> Reference:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.serving.reference", str(folder), str(THREADS),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 24,
        )  # fmt: skip
        reference = cls(child, scratch)
        await reference._line()
        return reference

    async def _line(self) -> bytes:
        assert self._child.stdout is not None
        async with asyncio.timeout(PROGRAM_S):
            line = await self._child.stdout.readline()
        if not line:
            raise RuntimeError("the reference process ended")
        return line

    async def measure(self, width: int, count: int) -> tuple[dict[str, Any], Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{width} {count // width} {self._path}\n".encode())
        got = json.loads(await self._line())
        return got, numpy.load(self._path)

    async def stop(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        await self._child.wait()


class Served:
    """What answers requests: a way to reach it, and the processes that do the work."""

    def __init__(self, way: str, url: str, target: str, pids: list[int], scratch: Path) -> None:
        self._arguments = (way, url, target)
        self._pids = pids
        self._path = scratch / f"{way}.npy"

    async def measure(self, clients: int, count: int) -> tuple[dict[str, Any], Any]:
        before = cpu_s(self._pids)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.serving.clients", *self._arguments, str(clients), str(count),
            str(self._path), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PROGRAM_S):
            out, _ = await child.communicate()
        if child.returncode != 0:
            raise RuntimeError(f"the clients ended with {child.returncode}")
        got = json.loads(out)
        got["client_cpu_s"] = got["cpu_s"]
        got["cpu_s"] += cpu_s(self._pids) - before
        return got, numpy.load(self._path)


def copied(settings: Settings) -> Path:
    """The folder that the node loaded."""
    return next(settings.artifacts.glob("minilm-*"))


@contextlib.asynccontextmanager
async def bus(folder: Path, scratch: Path) -> AsyncIterator[tuple[Served, Path]]:
    """A plane with MiniLM loaded, and the folder that it was loaded from."""
    async with Plane(Settings(data_dir=scratch / "plane", log_level="warning")) as plane:
        node = await plane.node_alive()
        client = await Client.connect(plane.settings)
        row = await deployed(client, node, folder, THREADS)
        live = await client.live(node.id)
        await client.close()
        resident = next(each for each in live.residents if each.entry.deployment_id == row.id) if live else None
        if resident is None:
            raise RuntimeError("the worker does not hold what it loaded")
        user, password = plane.nats_login(OPERATOR)
        url = plane.nats_url.replace("nats://", f"nats://{user}:{password}@")
        subject = subjects.serve_subject(node.id, node.generation, row.id)
        pids = [plane.pid("worker") or 0, plane.pid("nats") or 0, resident.child_pid]
        yield Served("bus", url, subject, pids, scratch), copied(plane.settings)


@contextlib.asynccontextmanager
async def infinity(folder: Path, scratch: Path) -> AsyncIterator[tuple[Served | None, Infinity, str]]:
    """Its server, standing still; or None and why it can't be measured."""
    server, served, why = Infinity(folder, THREADS, scratch / "infinity.log"), None, ""
    try:
        try:
            await server.start()
            served = Served("http", server.url, MODEL, [server.pid], scratch)
            await served.measure(1, WARM_UP_REQUESTS)
            server.still()
        except Unavailable as error:
            why = str(error)
        yield served, server, why
    finally:
        await server.stop()


def agreement(vectors: Any, expected: Any) -> dict[str, float]:
    """How these vectors, in the order of the requests, differ from what the reference gave each sentence alone."""
    wanted = expected[numpy.arange(len(vectors)) % len(expected)]
    return {
        "difference": float(numpy.abs(vectors - wanted).max()),
        "cosine": float((vectors * wanted).sum(axis=1).min()),
        "identical": float((vectors == wanted).all(axis=1).mean()),
    }


async def serving(counts: dict[int, int], rounds: int) -> dict[str, Any]:
    """`counts`: sentences of a turn by width: of a batch in one process, clients with one sentence each elsewhere."""
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        async with (
            bus(model_folder(None), scratch) as (ours, files),
            infinity(files, scratch) as (theirs, server, why),
        ):
            reference = await Reference.start(files, scratch)
            _, expected = await reference.measure(1, len(SENTENCES))
            await ours.measure(1, WARM_UP_REQUESTS)
            idle = Share()
            await asyncio.sleep(IDLE_S)
            idle_ours, idle_others = idle.told()
            systems: dict[str, Reference | Served] = {"local": reference, "bus": ours}
            if theirs is not None:
                systems["infinity"] = theirs
            got: list[dict[str, Any]] = []
            for number in range(rounds):
                share = Share()
                measured: dict[str, Any] = {}
                for width, count in counts.items():
                    order = list(systems)
                    for system in order[number % len(order) :] + order[: number % len(order)]:
                        if system == "infinity":
                            server.go()
                        result, vectors = await systems[system].measure(width, count)
                        if system == "infinity":
                            server.still()
                        agreed = agreement(vectors, expected)
                        if agreed["difference"] > DIFFERENCE_MAX and system != "infinity":
                            raise RuntimeError(f"{system}, {width}: a vector differs by {agreed['difference']:.1e}")
                        measured[f"{system}-{width}"] = summary(result, count, agreed)
                measured["others"] = share.told()[1]
                got.append(measured)
            await reference.stop()
    cosines = [each[f"infinity-{width}"]["cosine"] for each in got for width in counts if theirs is not None]
    if cosines and min(cosines) < INFINITY_COSINE_MIN:
        why, theirs = f"its vectors are of another model (cosine {min(cosines):.3f})", None
    return {
        "rounds": got, "threads": THREADS, "counts": counts, "idle": idle_ours, "others_before": idle_others,
        "infinity": why if theirs is None else "",
    }  # fmt: skip


def summary(result: dict[str, Any], count: int, agreed: dict[str, float]) -> dict[str, float]:
    """One turn of one system."""
    took = sorted(result["latencies_ms"])
    return {
        "p50_ms": median(took), "p99_ms": took[min(len(took) - 1, int(0.99 * len(took)))],
        "per_s": count / result["seconds"], "cpu_ms": result["cpu_s"] / count * 1000,
        "client_cpu_ms": result.get("client_cpu_s", 0.0) / count * 1000,
        "batch": count / result["batches"] if "batches" in result else 0.0,
        "compute_ms": result.get("compute_ms", 0.0), **agreed,
    }  # fmt: skip
