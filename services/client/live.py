"""What may be said about a deployment on a node *now*, from the log's word and the worker's.

`loaded` needs all of this: the node answered just now, the answer is of the node's current generation, that
generation serves, and it lists the deployment as resident with exactly the artifact, profile, fingerprint and
generation that were deployed. The log alone never makes anything loaded.

| the worker's word                                  | state                                  |
|----------------------------------------------------|----------------------------------------|
| silence                                            | `unknown`, and since when              |
| an answer of another generation                    | `unknown`                              |
| it has stopped serving                             | `not_serving`                          |
| the deployment is not in its list                  | `absent`                               |
| it is there with another artifact, profile, ...    | `mismatch`, naming what differs        |
| it is there, loading, draining or unloading        | that                                   |
| it is there, resident and exact                    | `loaded`                               |

Pure: no clock, no bus.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from projections.rows import DeploymentRow, NodeRow, ResidencyRow
from schemas.live import LiveAnswer, Resident
from services.client.silence import Silence

LiveState = Literal["loaded", "loading", "draining", "unloading", "absent", "mismatch", "not_serving", "unknown"]


class Holding(Struct, frozen=True, kw_only=True):
    """One deployment on one node. Fields after `log_changed_at_ms` are None unless the worker said them now.

    `silent_ms` is for how long the owner has said nothing: since its last heartbeat, where one was heard, else since
    the log recorded that its session ended; None while it answers, and where neither is known. The circuit's fields
    are the log's, None while loads are taken as usual.
    """

    deployment_id: str
    name: str
    capability: str
    node_id: str
    state: LiveState
    reason: str
    session: str
    silent_ms: int | None
    log_state: str
    log_generation: str
    log_cause: str
    log_changed_at_ms: int | None
    generation: str | None = None
    since_ms: int | None = None
    pid: int | None = None
    process_bytes: int | None = None
    invocations: int | None = None
    in_flight: int | None = None
    circuit_until_ms: int | None = None
    circuit_cause: str | None = None


def holding(
    deployment: DeploymentRow,
    node_id: str,
    node: NodeRow | None,
    residency: ResidencyRow | None,
    answer: LiveAnswer | None,
    now_ms: int,
    heard: Silence | None = None,
) -> Holding:
    """The state of this deployment on this node, by the table above."""
    state, reason, resident = _judge(deployment, node, answer)
    session = node.session if node else "none"
    return Holding(
        deployment_id=deployment.id,
        name=deployment.name,
        capability=deployment.capability,
        node_id=node_id,
        state=state,
        reason=reason,
        session=session,
        silent_ms=_silent_ms(node, answer, now_ms, heard),
        log_state=residency.state if residency else "absent",
        log_generation=residency.generation if residency else "0",
        log_cause=residency.cause if residency else "",
        log_changed_at_ms=residency.changed_at_ms if residency else None,
        generation=answer.generation if answer else None,
        since_ms=resident.since_ms if resident else None,
        pid=resident.child_pid if resident else None,
        process_bytes=resident.process_bytes if resident else None,
        invocations=resident.invocations if resident else None,
        in_flight=resident.in_flight if resident else None,
        circuit_until_ms=residency.circuit_until_ms if residency else None,
        circuit_cause=residency.circuit_cause if residency else None,
    )


def _silent_ms(node: NodeRow | None, answer: LiveAnswer | None, now_ms: int, heard: Silence | None) -> int | None:
    if node is None or (answer is not None and answer.generation == node.generation):
        return None
    if heard is not None and heard.generation == node.generation:
        return heard.silent_ms
    return max(0, now_ms - node.changed_at_ms) if node.session in ("lost", "left") else None


def _judge(
    deployment: DeploymentRow, node: NodeRow | None, answer: LiveAnswer | None
) -> tuple[LiveState, str, Resident | None]:
    if node is None:
        return "unknown", "the node is not enrolled", None
    if answer is None:
        return "unknown", "the worker does not answer", None
    if answer.node_id != node.id or answer.generation != node.generation:
        return "unknown", f"generation {answer.generation} answered; the log's is {node.generation}", None
    found = [each for each in answer.residents if each.entry.deployment_id == deployment.id]
    if not answer.serving:
        reason = "the worker has stopped serving: it could not renew its session"
        return "not_serving", reason, found[0] if len(found) == 1 else None
    if not found:
        return "absent", "the worker does not hold it", None
    if len(found) > 1:
        return "mismatch", "the worker lists it more than once", None
    wrong = _differences(deployment, answer, found[0])
    if wrong:
        return "mismatch", f"the worker holds another {', '.join(wrong)}", found[0]
    if found[0].entry.state == "resident":
        return "loaded", "the worker holds it", found[0]
    return found[0].entry.state, "the worker is at it", found[0]


def _differences(deployment: DeploymentRow, answer: LiveAnswer, resident: Resident) -> list[str]:
    entry = resident.entry
    expected = {
        "artifact": (entry.artifact_id, deployment.artifact_id),
        "profile": (entry.profile_id, deployment.profile_id),
        "fingerprint": (entry.fingerprint, deployment.fingerprint),
        "generation": (entry.generation, answer.generation),
    }
    return [name for name, (held, deployed) in expected.items() if held != deployed]
