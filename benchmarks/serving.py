"""Invoke over NATS beside encoding in one process, in turn, with the same files, text and thread count.

A plane is started in a temporary folder, MiniLM goes through every gate and is loaded; one client then sends one
short sentence at a time, and a process of its own encodes the same sentence with sentence-transformers.

    python -m benchmarks.serving local FOLDER THREADS COUNT
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import nats

from benchmarks.commands import percentiles
from projections.rows import CandidateRow, DeploymentRow, NodeRow
from schemas import subjects
from schemas.profiles import RuntimeProfile
from schemas.serving import Answer, ServeAnswer
from schemas.tasks.text import EmbedRequest
from services.cli.demo.command import model_folder
from services.cli.prove import artifact, assess, candidate, probe, profile
from services.cli.screen.terminal import Terminal
from services.cli.serve import deployment
from services.client import Client
from services.embedded.nats_conf import OPERATOR
from services.embedded.plane import Plane
from services.settings import Settings

TEXT = "A lease is a promise with an end."
THREADS = 2
ROUNDS = 5
WARM_UP = 20
REQUEST_S = 30.0


async def deployed(client: Client, node: NodeRow, folder: Path) -> DeploymentRow:
    """MiniLM through every gate, loaded; each gate as its command does it."""
    terminal = Terminal(as_json=True)
    prepared = await artifact.prepare(client, terminal, folder, "minilm", node.id, True, ())
    row, _ = await artifact.register(client, prepared)
    await artifact.verify(client, terminal, row.id, node.id, prepared.location)
    assessed = assess.compatible(await assess.assess(client, terminal, row.id, node.id, "embedding"))
    settings = RuntimeProfile(adapter=str(assessed.adapter), task="embedding", threads=THREADS)
    made = await profile.create(client, assessed.id, settings)
    probe_id, position = await probe.request(client, assessed.id, made.id)
    await probe.finish(client, terminal, probe_id, position)
    found = await client.appear(CandidateRow, probe_id)
    await candidate.approve(client, found, found.digest, "benchmark")
    served = await deployment.create(client, "minilm", found, found.digest, "embedding", [node.id])
    await deployment.do(client, terminal, served, node.id, "load")
    return served


async def invoked(nc: nats.NATS, subject: str, count: int) -> list[float]:
    """Milliseconds of each of `count` invocations, one after another."""
    request = msgspec.msgpack.encode(EmbedRequest(texts=[TEXT]))
    decode = msgspec.msgpack.Decoder(ServeAnswer).decode
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        answer = decode((await nc.request(subject, request, timeout=REQUEST_S)).data)
        took.append((time.perf_counter() - begun) * 1000)
        if not isinstance(answer, Answer):
            raise RuntimeError(f"no answer but {answer}")
    return took


def local(folder: str, threads: int, count: int) -> list[float]:
    """Milliseconds of each of `count` encodings in this process."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu", local_files_only=True)
    took = []
    for number in range(count + WARM_UP):
        begun = time.perf_counter()
        model.encode([TEXT], normalize_embeddings=True, show_progress_bar=False)
        if number >= WARM_UP:
            took.append((time.perf_counter() - begun) * 1000)
    return took


async def serving(count: int) -> dict[str, Any]:
    folder = model_folder(None)
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", ignore_cleanup_errors=True) as name:
        async with Plane(Settings(data_dir=Path(name), log_level="warning")) as plane:
            node = await plane.node_alive()
            client = await Client.connect(plane.settings)
            served = await deployed(client, node, folder)
            user, password = plane.nats_login(OPERATOR)
            nc = await nats.connect(plane.nats_url, user=user, password=password)
            subject = subjects.serve_subject(node.id, node.generation, served.id)
            await invoked(nc, subject, WARM_UP)
            over_nats: list[float] = []
            in_process: list[float] = []
            ratios = []
            for _ in range(ROUNDS):
                mine = await invoked(nc, subject, count)
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.serving", "local", str(folder), str(THREADS), str(count),
                    stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
                out, _ = await child.communicate()
                theirs = json.loads(out)
                over_nats += mine
                in_process += theirs
                ratios.append(median(mine) / median(theirs))
            await nc.close()
            await client.close()
    return {
        "invoke_ms": percentiles(over_nats), "local_ms": percentiles(in_process), "ratio": median(ratios),
        "rounds": ROUNDS, "threads": THREADS,
    }  # fmt: skip


if __name__ == "__main__":
    _, _mode, _folder, _threads, _count = sys.argv
    print(json.dumps(local(_folder, int(_threads), int(_count))))
