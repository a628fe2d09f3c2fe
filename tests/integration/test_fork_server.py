"""The fork server with what the adapters declare: nothing that a load needs is left out, and copies differ."""

from __future__ import annotations

from pathlib import Path

import structlog
from structlog.testing import capture_logs

from schemas.profiles import RuntimeProfile
from tests.integration.worker_process import copy_model
from tests.unit.worker.launch.own_processes import children
from worker.launch.launching import Launcher, beginning
from worker.model import frames
from worker.model.child import ModelProcess
from worker.sandbox.decoys import Decoys
from worker.sandbox.paths import Policy

PROFILE = RuntimeProfile(adapter="counting", task="embedding", threads=1)
SOURCE = frames.Source("artifact", "profile", "1")
ANSWER_MS = 60_000.0
IMPORTS_LEFT_MAX = 6  # of some 4,000: names that the libraries make when a model asks for them


async def test_a_load_finds_its_imports_done(tmp_path: Path) -> None:
    structlog.reset_defaults()
    before = children()  # servers that other tests of this session share
    copy_model(tmp_path, "minilm")
    begin = beginning()
    begin.imports.append("tests.unit.worker.launch.preloaded.counting")
    decoys = await Decoys.open(tmp_path)
    with capture_logs() as logs:
        launcher = Launcher.open(tmp_path, begin)
        try:
            seeds = {await _load(launcher, decoys, str(tmp_path / "minilm")) for _ in range(2)}
        finally:
            await launcher.close()
            await decoys.close()
    (ready,) = [line for line in logs if line["event"] == "fork_server_ready"]
    assert ready["missing"] == []
    assert len(seeds) == 2
    assert children() == before


async def _load(launcher: Launcher, decoys: Decoys, folder: str) -> str:
    """The seed that torch had in the copy."""
    process = await ModelProcess.spawn(launcher, PROFILE)
    try:
        assert process.way == "forked"
        policy = Policy(folder, str(process.scratch))
        confined = await process.ask(frames.Confine(policy, decoys.targets), ANSWER_MS)
        assert isinstance(confined, frames.Confined)
        assert confined.proof.proven, confined.proof
        prepared = await process.ask(frames.Prepare(PROFILE, SOURCE), ANSWER_MS)
        assert isinstance(prepared, frames.Prepared)
        await process.ask(frames.Start(folder), ANSWER_MS)
        checked = await process.ask(frames.CheckHealth(), ANSWER_MS)
        assert isinstance(checked, frames.HealthSeen)
        assert checked.health.capability
        assert len(checked.health.detail.split()) <= IMPORTS_LEFT_MAX, checked.health.detail
        return prepared.versions["torch seed"]
    finally:
        await process.kill()
