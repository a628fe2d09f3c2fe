"""MiniLM deployed on a running plane, through every gate, each as its command does it."""

from __future__ import annotations

from pathlib import Path

from projections.rows import CandidateRow, DeploymentRow, NodeRow
from schemas.profiles import RuntimeProfile
from services.cli.prove import artifact, assess, candidate, probe, profile
from services.cli.screen.terminal import Terminal
from services.cli.serve import deployment
from services.client import Client


async def deployed(client: Client, node: NodeRow, folder: Path, threads: int = 2) -> DeploymentRow:
    """Loaded, and ready to answer."""
    terminal = Terminal(as_json=True)
    prepared = await artifact.prepare(client, terminal, folder, "minilm", node.id, True, ())
    row, _ = await artifact.register(client, prepared)
    await artifact.verify(client, terminal, row.id, node.id, prepared.location)
    assessed = assess.compatible(await assess.assess(client, terminal, row.id, node.id, "embedding"))
    settings = RuntimeProfile(adapter=str(assessed.adapter), task="embedding", threads=threads)
    made = await profile.create(client, assessed.id, settings)
    probe_id, position = await probe.request(client, assessed.id, made.id)
    await probe.finish(client, terminal, probe_id, position)
    found = await client.appear(CandidateRow, probe_id)
    await candidate.approve(client, found, found.digest, "benchmark")
    served = await deployment.create(client, "minilm", found, found.digest, "embedding", [node.id])
    await deployment.do(client, terminal, served, node.id, "load")
    return served
