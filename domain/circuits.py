"""Circuits: a deployment that ends by itself again and again on a node is not loaded there for ever.

What counts is an end that nobody asked for: a resident whose process died or hung, or a load that failed in the
model's own process. ENDS_MAX of them within WINDOW_MS open the circuit of that deployment on that node.

    closed --ENDS_MAX ends within WINDOW_MS--> open --its time has passed--> half open
    half open --a load succeeds--> closed          half open --one more end--> open, for twice as long
    open or half open --a person closes it--> closed, with nothing remembered

Open means that loads are refused with RUNTIME_CRASH_LOOP. Half open is no event: time alone brings it about, and
one load may try, since a second one joins the first. The time doubles from BACKOFF_MS_MIN to BACKOFF_MS_MAX with each
opening in a row; a circuit that stayed closed for WINDOW_MS begins again. A load that was cancelled, lost its
worker or found no device memory says nothing about the model: it neither opens nor closes.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from domain.bindings import bound
from domain.deciding.outcomes import Accepted, Outcome, Recorded, Rejected
from domain.deciding.world import World
from domain.folding.states import Circuit, DeploymentState, End, stream_of
from schemas.codes import Code
from schemas.commands import CloseCircuit
from schemas.events import CircuitClosed, CircuitOpened, ResidencyChanged

ENDS_MAX = 3
WINDOW_MS = 600_000
BACKOFF_MS_MIN = 60_000
BACKOFF_MS_MAX = 3_600_000
MESSAGE_CHARACTERS_MAX = 500

LOADS_THAT_CRASH = frozenset(
    {Code.CHILD_DIED, Code.OUT_OF_MEMORY, Code.LOAD_FAILED, Code.HEALTH_FAILED, Code.LOAD_TIMEOUT}
)
RESIDENTS_THAT_CRASH = frozenset({Code.CHILD_DIED, Code.OUT_OF_MEMORY, Code.DEADLINE_EXCEEDED})


def is_crash(before: str, after: str, code: Code | None) -> bool:
    """Whether a residency's step is an end that nobody asked for and that the model itself is behind."""
    if after == "failed":
        return before == "loading" and code in LOADS_THAT_CRASH
    return after == "lost" and code in RESIDENTS_THAT_CRASH


def ended(circuit: Circuit | None, at_ms: int, code: Code) -> Circuit:
    """The circuit with one more end; what is older than the window or beyond the bound is forgotten."""
    known = circuit or Circuit()
    recent = [end for end in known.ends if at_ms - end.at_ms < WINDOW_MS]
    return replace(known, ends=[*recent, End(at_ms, code)][-ENDS_MAX:])


def backoff_ms(openings: int) -> int:
    """How long the circuit stays open, the first time (1) and after."""
    doublings = min(openings - 1, BACKOFF_MS_MAX.bit_length())
    return min(BACKOFF_MS_MIN << doublings, BACKOFF_MS_MAX)


def follow(
    before: DeploymentState, after: DeploymentState, event: ResidencyChanged, stamp: dict[str, Any]
) -> CircuitOpened | CircuitClosed | None:
    """The opening or closing that a residency's step calls for, None where it calls for none."""
    node_id = event.node_id
    circuit = after.circuits.get(node_id)
    if circuit is None:
        return None
    about: dict[str, Any] = {"deployment_id": after.deployment_id, "node_id": node_id, **stamp}
    if is_crash(before.residency(node_id), event.state, event.code) and event.code is not None:
        if circuit.until_ms is None and len(circuit.ends) < ENDS_MAX:
            return None
        lasted = circuit.until_ms is None and event.at_ms - circuit.closed_at_ms >= WINDOW_MS
        openings = 1 if lasted else circuit.openings + 1
        return CircuitOpened(
            cause=event.code, message=event.cause[:MESSAGE_CHARACTERS_MAX], ends=len(circuit.ends), openings=openings,
            until_ms=event.at_ms + backoff_ms(openings), **about,
        )  # fmt: skip
    loaded = before.residency(node_id) == "loading" and event.state == "resident"
    return CircuitClosed(by="load", **about) if loaded and circuit.until_ms is not None else None


def load_refused(deployment: DeploymentState, node_id: str, now_ms: int) -> Rejected | None:
    """None where the deployment may be loaded on the node: its circuit is closed, or half open."""
    circuit = deployment.circuits.get(node_id)
    if circuit is None or circuit.until_ms is None or now_ms >= circuit.until_ms:
        return None
    left_ms = circuit.until_ms - now_ms
    message = (
        f"{deployment.name} ended by itself {len(circuit.ends)} times on node {node_id}, last with "
        f"{circuit.message}; one load may try again in {-(-left_ms // 1_000)} s"
    )
    detail = {"cause": str(circuit.cause), "until_ms": str(circuit.until_ms), "openings": str(circuit.openings)}
    return Rejected(Code.RUNTIME_CRASH_LOOP, message, detail)


def close(command: CloseCircuit, world: World) -> Outcome:
    """A person says that the cause is gone. Where nothing is open, that holds already."""
    deployment = bound(command.deployment_id, command.node_id, world)
    if isinstance(deployment, Rejected):
        return deployment
    result: dict[str, Any] = {"deployment_id": deployment.deployment_id, "node_id": command.node_id}
    circuit = deployment.circuits.get(command.node_id)
    if circuit is None or circuit.until_ms is None:
        return Accepted(result=result)
    event = CircuitClosed(by="person", **result, **world.stamp(command))
    return Accepted([Recorded(stream_of("deployment", deployment.deployment_id), event)], result)
