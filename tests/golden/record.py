"""Record the golden history of the main job: `python -m tests.golden.record`, from the repository's root.

One complete main job with everything that may go wrong on its way and still counts: files verified, a lease
renewed and one expired, a worker that takes over, late evidence, a probe that falls short, an approval, loads,
a drain and an unload, a cancelled job, a child that dies. Clock and ids are counted and keys follow from the
generation, so recording again gives the same bytes unless the rules or the events have changed.

What is told now is the newest history: v2 goes on from v1 with device memory, a crash loop and a cancelled unload.

Never record over a history that has been released: a change of events needs a new history beside it, and
the old ones must go on folding to the states they always had.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from domain.circuits import BACKOFF_MS_MIN, ENDS_MAX
from domain.folding.states import CandidateState, State
from schemas import commands as c
from schemas import evidence as se
from schemas.canonical import digest_of
from schemas.codes import Code
from schemas.devices import DeviceReading
from schemas.events import TOPIC_OF, decode_event, encode_event
from schemas.work import ProbeSpec
from tests.unit.domain import statements as says
from tests.unit.domain.story import PROFILE, Line, Story

FOLDER = Path(__file__).parent
HISTORIES = ("main_job_v1", "main_job_v2")
NEWEST = HISTORIES[-1]
# Fields that states have gained since a history was recorded: its states are those without them.
GAINED: dict[str, frozenset[str]] = {"main_job_v1": frozenset({"reserved", "circuits", "before"})}


class Recorded(Struct, frozen=True):
    """One line of a history. `state` is the event's JSON as text, exactly as the log has it."""

    position: int
    stream: str
    version: int
    topic: str
    state: str


def key_of(generation: str) -> Ed25519PrivateKey:
    """A key for tests only; a real one is random and never leaves its worker."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"golden generation {generation}".encode()).digest())


def sign(generation: str, payload: str) -> str:
    return base64.b64encode(key_of(generation).sign(payload.encode())).decode()


def public_key(generation: str) -> str:
    return base64.b64encode(key_of(generation).public_key().public_bytes_raw()).decode()


def tell() -> Story:
    story = Story(sign, public_key)
    probe_id = story.probe()
    story.claim(probe_id)
    for progress in (se.Progress("loading"), se.Progress("healthchecking")):
        story.wait(900)
        story.say(probe_id, progress)
    story.start_worker()  # takes over; the older one does not know it yet
    story.say(probe_id, says.probed(story.fingerprint()))
    order = story.claim(probe_id)
    story.wait(order.lease_ms // 2)
    story.accept(c.RenewLease, work_id=probe_id, generation="2", attempt=order.attempt, token=order.token)
    story.wait(order.lease_ms + 1)
    story.accept(c.ExpireLease, work_id=probe_id, attempt=order.attempt)
    story.finish(probe_id, says.probed(story.fingerprint()))
    spec = story.work(probe_id).spec
    assert isinstance(spec, ProbeSpec)
    again = story.work_for(c.RequestProbe, assessment_id=spec.assessment_id, profile_id=spec.profile_id)
    story.finish(again, msgspec.structs.replace(says.probed(story.fingerprint()), offline=says.offline(proven=False)))
    serve(story, probe_id)
    place(story)
    return story


def serve(story: Story, probe_id: str) -> None:
    candidate = story.get(CandidateState, f"candidate-{probe_id}")
    story.approve(candidate)
    deployment_id = story.deploy(candidate)
    story.accept(c.CancelWork, work_id=story.job(deployment_id, "load"), reason="too early")
    stopped = story.job(deployment_id, "load")
    story.claim(stopped)
    story.accept(c.CancelWork, work_id=stopped, reason="too early again")
    story.say(stopped, se.WorkCancelled("loading"))
    story.finish(story.job(deployment_id, "load"), says.failed(Code.OUT_OF_MEMORY, "300 MB short"))
    load_id = story.load(deployment_id)
    story.finish(story.job(deployment_id, "health"), se.HealthChecked(says.health(), 12))
    died = se.ResidentLost(deployment_id=deployment_id, code=Code.CHILD_DIED, message="signal 9", exit_code=-9)
    story.say(load_id, died)
    story.load(deployment_id)
    story.finish(story.job(deployment_id, "drain"), says.drained(1))
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    story.load(deployment_id)
    story.say("unknown", says.verified(), generation="2")
    story.accept(c.LoseSession, node_id="n1", generation="2", silent_ms=10_500)
    story.start_worker()
    story.accept(c.RevokeApproval, candidate_id=probe_id, note="superseded")
    story.accept(c.RetireDeployment, deployment_id=deployment_id)
    story.accept(c.DisableNode, node_id="n1", reason="maintenance")
    story.accept(c.EnableNode, node_id="n1")


def place(story: Story) -> None:
    """Since v2: device memory reserved, short and given back, a crash loop, and an unload that was not begun."""
    story.start_worker()
    story.devices = [DeviceReading(0, 80_000, 10_000, 0, 10_000)]
    probe_id = story.probe(msgspec.structs.replace(PROFILE, device="cuda"))
    story.finish(probe_id, says.probed(story.fingerprint(), memory=says.on_device(30_000, 500, 40_500)))
    candidate = story.get(CandidateState, f"candidate-{probe_id}")
    story.approve(candidate)
    deployment_id, other_id = story.deploy(candidate, "on-device"), story.deploy(candidate, "beside")
    for _ in range(ENDS_MAX):
        story.finish(story.job(deployment_id, "load"), says.failed(Code.OUT_OF_MEMORY, "CUDA out of memory"))
        story.wait(1_000)
    story.wait(BACKOFF_MS_MIN)
    story.finish(story.job(deployment_id, "load"), says.failed(Code.CHILD_DIED, "was ended by SIGSEGV"))
    story.wait(2 * BACKOFF_MS_MIN)
    story.load(deployment_id)
    story.ask_for(story.job(other_id, "load"))  # there is no room for both
    story.accept(c.CancelWork, work_id=story.job(deployment_id, "unload"), reason="kept after all")
    story.finish(story.job(deployment_id, "unload"), says.unloaded())
    for _ in range(ENDS_MAX):
        story.finish(story.job(other_id, "load"), says.failed(Code.LOAD_TIMEOUT, "in step `start`"))
    story.accept(c.CloseCircuit, deployment_id=other_id, node_id="n1")


def recorded(lines: Sequence[Line]) -> list[Recorded]:
    return [
        Recorded(
            line.position, line.stream, line.version, TOPIC_OF[type(line.event)], encode_event(line.event).decode()
        )
        for line in lines
    ]


def read(text: str) -> list[Line]:
    """The lines of a history, decoded as the log is."""
    lines = [msgspec.json.decode(line, type=Recorded) for line in text.splitlines()]
    return [Line(r.position, r.stream, r.version, decode_event(r.topic, r.state.encode())) for r in lines]


def written(history: Sequence[Recorded]) -> str:
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in history)


def states_digest(states: dict[str, State], without: frozenset[str] = frozenset()) -> str:
    """Of all states, leaving out the fields `without` at whatever depth."""
    plain = {stream: [type(state).__name__, msgspec.to_builtins(state)] for stream, state in states.items()}
    return digest_of(_left(plain, without))


def _left(value: Any, without: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _left(item, without) for key, item in value.items() if key not in without}
    return [_left(item, without) for item in value] if isinstance(value, list) else value


def history_file(name: str) -> Path:
    return FOLDER / f"{name}.jsonl"


def digest_file(name: str) -> Path:
    return FOLDER / f"{name}.sha256"


def main() -> int:
    story = tell()
    history_file(NEWEST).write_text(written(recorded(story.lines)))
    states = {stream: state for stream, state in story.world.states.items() if state is not None}
    digest_file(NEWEST).write_text(states_digest(states) + "\n")
    sys.stdout.write(f"{len(story.lines)} events, {len(states)} streams\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
