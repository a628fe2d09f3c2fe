"""The worker's terms and ends: partition, fencing, lost leases, kill -9, stop in good order, absent control plane.

Each test has a worker of its own on a shared bus; only two of them load a model.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.artifacts import FileEntry
from schemas.codes import Code
from schemas.evidence import Loaded, Verified, WorkCancelled
from schemas.profiles import RuntimeProfile, profile_digest
from schemas.serving import Answer
from schemas.tasks.text import EmbedRequest
from schemas.work import JobSpec, VerifySpec
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import CONTROL, node_user
from tests.integration.fake_control import WAIT_S, FakeControl, Item
from tests.integration.worker_process import WorkerProcess, artifact_id, copy_model, manifest
from worker.agent import EXIT_CLOSED
from worker.launch.processes import Identity, identify, system_boot_id

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding")


class Site:
    """A bus, an artifact root, and what was started on them."""

    def __init__(self, server: NatsServer, folder: Path, files: list[FileEntry]) -> None:
        self.server, self.folder, self.files = server, folder, files
        self.root = folder / "artifacts"
        self.controls: list[FakeControl] = []
        self.workers: list[WorkerProcess] = []

    async def control(self, node_id: str, **terms: int) -> FakeControl:
        control = FakeControl(node_id, **terms)
        await control.open(self.server.url(CONTROL))
        self.controls.append(control)
        return control

    async def worker(self, node_id: str, folder: str | None = None) -> WorkerProcess:
        worker = await WorkerProcess.start(self.server, node_id, self.root, self.folder / (folder or node_id))
        self.workers.append(worker)
        return worker

    async def load(self, control: FakeControl, deployment_id: str) -> Loaded:
        spec = JobSpec("load", deployment_id, artifact_id(self.files), profile_digest(PROFILE))
        item = await control.order("load", spec, files=self.files, location="minilm", profile=PROFILE)
        outcome = await control.outcome(item)
        assert isinstance(outcome, Loaded), outcome
        return outcome

    async def slow_verify(self, control: FakeControl) -> Item:
        """Work that lasts until it's ended: hashing a file that is large and has no bytes on disk."""
        folder = self.root / f"large-{control.node_id}"
        folder.mkdir(exist_ok=True)
        with (folder / "zeros").open("wb") as file:
            file.truncate(4 * 1024**4)
        files = [FileEntry("zeros", 4 * 1024**4, "0" * 64)]
        spec = VerifySpec(artifact_id(files), folder.name)
        return await control.order("verify", spec, files=files, location=folder.name)

    def change_login(self, node_id: str) -> None:
        """Another password, while the server runs: it ends what is logged in with the old one, with an error."""
        file = self.server.password_file(node_user(node_id))
        file.unlink()  # a file made anew is noticed by the folder's time
        file.write_text("a-password-that-nobody-was-told")
        assert self.server.follow_logins()

    async def tidy(self) -> None:
        for worker in self.workers:
            await worker.kill()
        for control in self.controls:
            await control.close()
        self.workers.clear()
        self.controls.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("sessions")
    server = NatsServer(folder / "bus")
    await server.start()
    (folder / "artifacts").mkdir()
    files = copy_model(folder / "artifacts", "minilm")
    yield Site(server, folder, files)
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def site(bus: Site) -> AsyncIterator[Site]:
    yield bus
    await bus.tidy()


async def gone(identity: Identity | None) -> None:
    """Until the process has ended; bounded."""
    assert identity is not None
    await until(lambda: identify(identity.pid) != identity, "the process to end")


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - what other processes do sets no event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s} s for {what}") from None


async def test_partition_stops_the_worker_which_comes_back_as_a_new_generation(site: Site) -> None:
    control = await site.control("node-p", session_ms=3_000)
    worker = await site.worker("node-p")
    await control.registered(1)
    loaded = await site.load(control, "deployment-p")
    child = identify(loaded.child_pid)
    assert isinstance(await control.invoke("deployment-p", EmbedRequest(["x"])), Answer)
    assert child is not None

    control.mute = True
    control.refuse_registration = Code.OVERLOADED  # as good as absent: nothing is granted
    await gone(child)
    async with asyncio.timeout(WAIT_S):
        while (live := await control.live()).residents:  # as long as the worker tidies up after it
            assert not live.serving
    assert not live.serving

    control.mute, control.refuse_registration = False, None
    await control.registered(2)
    assert control.registrations[0].session_public_key != control.registrations[1].session_public_key
    assert control.registrations[1].inventory == []
    await control.until(lambda: control.beats[-1].generation == "2", "a beat of the new generation")
    assert (await control.live()).serving
    # What the first generation had said stays said; the second proves itself with its own key.
    files = manifest(site.root / "minilm" / "1_Pooling")
    spec = VerifySpec(artifact_id(files), "minilm/1_Pooling")
    outcome = await control.outcome(await control.order("verify", spec, files=files, location="minilm/1_Pooling"))
    assert isinstance(outcome, Verified)
    assert await worker.stop() == 0


async def test_killed_parent_takes_its_child_along(site: Site) -> None:
    control = await site.control("node-k")
    worker = await site.worker("node-k")
    await control.registered(1)
    loaded = await site.load(control, "deployment-k")
    child = identify(loaded.child_pid)
    await worker.kill()
    await gone(child)
    successor = await site.worker("node-k")
    await control.registered(2)
    assert list((successor.data_dir / "worker" / "node-k" / "children").glob("*.json")) == []
    assert list((successor.data_dir / "worker" / "node-k" / "scratch").iterdir()) == []
    assert await successor.stop() == 0


async def test_sweep_ends_own_leftovers_only(site: Site) -> None:
    """A recorded child whose parent has gone is ended; a stranger with a pid of its own is not."""
    control = await site.control("node-s")
    folder = site.folder / "node-s" / "worker" / "node-s"
    (folder / "children").mkdir(parents=True)
    sleeper = (sys.executable, "-c", "import time; time.sleep(300)")
    leftover = await asyncio.create_subprocess_exec(*sleeper, start_new_session=True)
    stranger = await asyncio.create_subprocess_exec(*sleeper, start_new_session=True)
    try:
        found, other = identify(leftover.pid), identify(stranger.pid)
        assert found is not None
        assert other is not None
        boot_id = system_boot_id()
        dead_parent = {"pid": 2**22 - 1, "started": 1}
        for pid, started in ((found.pid, found.started), (other.pid, other.started + 1)):
            record = {
                "child": {"pid": pid, "started": started},
                "parent": dead_parent,
                "boot_id": boot_id,
                "scratch": str(folder / "scratch" / str(pid)),
            }
            (folder / "children" / f"{pid}.json").write_text(json.dumps(record))
        worker = await site.worker("node-s")
        await control.registered(1)
        assert await leftover.wait() == -signal.SIGKILL
        assert identify(other.pid) == other
        assert await worker.stop() == 0
    finally:
        for process in (leftover, stranger):
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_fenced_worker_exits_with_its_own_code(site: Site) -> None:
    control = await site.control("node-f")
    first = await site.worker("node-f", "node-f-1")
    await control.registered(1)
    second = await site.worker("node-f", "node-f-2")
    await control.registered(2)
    assert await first.exit_code() == 3
    assert control.left == []
    assert await second.stop() == 0
    assert control.left == ["2"]


async def test_wrong_credential_ends_the_worker(site: Site) -> None:
    control = await site.control("node-c")
    control.refuse_registration = Code.CREDENTIAL_REFUSED
    worker = await site.worker("node-c")
    assert await worker.exit_code() == 4
    assert "CREDENTIAL_REFUSED" in worker.output()


async def test_waits_for_an_absent_control_plane(site: Site) -> None:
    worker = await site.worker("node-w")
    await until(lambda: "registration_unanswered" in worker.output(), "a try without an answer")
    control = await site.control("node-w")
    await control.registered(1)
    assert await worker.stop() == 0


async def test_stops_while_unregistered(site: Site) -> None:
    worker = await site.worker("node-u")
    await until(lambda: "registration_unanswered" in worker.output(), "a try without an answer")
    assert await worker.stop() == 0


async def test_lease_is_renewed_while_work_lasts_and_cancel_ends_it(site: Site) -> None:
    control = await site.control("node-l", lease_ms=2_000)
    worker = await site.worker("node-l")
    await control.registered(1)
    item = await site.slow_verify(control)
    await control.until(lambda: item.renewals >= 3, "three renewals")
    item.cancel = True
    outcome = await control.outcome(item)
    assert isinstance(outcome, WorkCancelled)
    assert item.attempt == 1
    assert await worker.stop() == 0


async def test_lost_lease_aborts_the_work_and_the_next_attempt_is_taken(site: Site) -> None:
    control = await site.control("node-x", lease_ms=3_000)  # long enough to be held when the stop comes
    worker = await site.worker("node-x")
    await control.registered(1)
    item = await site.slow_verify(control)
    await control.until(lambda: item.leased, "the claim")
    item.leased = False  # the control plane's view: expired, offered again by the next beat
    await control.until(lambda: item.attempt == 2, "the second attempt")
    assert "lease_lost" in worker.output()
    assert not [one for one in control.evidence if one.attempt == 1 and isinstance(one.statement, Verified)]
    assert await worker.stop() == 0
    assert item.released  # stopping gives work back


async def test_a_grant_whose_token_got_lost_costs_no_term(site: Site) -> None:
    """The lease's term is longer than the test would wait."""
    control = await site.control("node-t", lease_ms=120_000)
    control.tokens_to_lose = 2
    worker = await site.worker("node-t")
    await control.registered(1)
    files = manifest(site.root / "minilm" / "1_Pooling")
    spec = VerifySpec(artifact_id(files), "minilm/1_Pooling")
    item = await control.order("verify", spec, files=files, location="minilm/1_Pooling")
    assert isinstance(await control.outcome(item), Verified)
    assert (item.attempt, control.claims) == (3, 3)
    assert await worker.stop() == 0


async def test_a_login_that_counts_no_more_ends_the_worker_and_its_model(site: Site) -> None:
    """nats-py does not come back from what the server ends with an error."""
    control = await site.control("node-g", session_ms=60_000)
    worker = await site.worker("node-g")
    await control.registered(1)
    loaded = await site.load(control, "deployment-g")
    child = identify(loaded.child_pid)
    site.change_login("node-g")
    assert await worker.exit_code() == EXIT_CLOSED
    assert identify(loaded.child_pid) != child
    assert "bus_closed" in worker.output()
    assert control.left == []


async def test_a_login_that_counts_no_more_ends_a_worker_that_nobody_answers(site: Site) -> None:
    worker = await site.worker("node-h")
    await until(lambda: "registration_unanswered" in worker.output(), "a try without an answer")
    site.change_login("node-h")
    assert await worker.exit_code() == EXIT_CLOSED


async def test_evidence_stays_until_confirmed_and_keeps_its_id(site: Site) -> None:
    control = await site.control("node-e")
    worker = await site.worker("node-e")
    await control.registered(1)
    control.hold_evidence = True
    files = manifest(site.root / "minilm" / "1_Pooling")
    spec = VerifySpec(artifact_id(files), "minilm/1_Pooling")
    item = await control.order("verify", spec, files=files, location="minilm/1_Pooling")
    await control.outcome(item)
    told = {one.evidence_id for one in control.evidence}
    await control.until(lambda: set(control.beats[-1].unconfirmed) == told, "both to be listed as unconfirmed")
    control.hold_evidence = False
    await control.until(lambda: control.beats[-1].unconfirmed == [], "the confirmation")
    assert await worker.stop() == 0


async def test_bus_restart_is_survived(site: Site) -> None:
    control = await site.control("node-r", session_ms=30_000)
    worker = await site.worker("node-r")
    await control.registered(1)
    await site.server.stop()
    await site.server.start()
    files = manifest(site.root / "minilm" / "1_Pooling")
    spec = VerifySpec(artifact_id(files), "minilm/1_Pooling")
    item = await control.order("verify", spec, files=files, location="minilm/1_Pooling", publish=False)
    outcome = await control.outcome(item)  # offered by beats alone
    assert isinstance(outcome, Verified)
    assert control.generation == 1
    assert await worker.stop() == 0
