"""2: nothing a fenced generation, an older attempt or an ended lease said changes state."""

from __future__ import annotations

import msgspec

from schemas import events as ev
from schemas.evidence import Evidence, ResidentLost
from services.eventlog.port import LogRow
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.leases import Leases

decode_evidence = msgspec.json.Decoder(Evidence).decode
COUNTS = (ev.WorkProgressed, ev.WorkCompleted, ev.WorkFailed, ev.WorkCancelled, ev.ResidencyChanged)


class Fencing(Checker):
    """Looks at the signed evidence inside each event that counts, before `leases` has seen the event."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def see(self, row: LogRow, event: ev.Event) -> None:
        if not isinstance(event, COUNTS) or event.signed is None:
            return
        evidence = decode_evidence(event.signed.payload)
        current = self._leases.generation[evidence.node_id]
        if int(evidence.generation) != current:
            raise Violation(f"the word of generation {evidence.generation} counted; {evidence.node_id} is at {current}")
        if isinstance(evidence.statement, ResidentLost):
            return
        held = self._leases.live.get(evidence.work_id)
        if held != (evidence.generation, evidence.attempt) and not isinstance(event, ev.ResidencyChanged):
            raise Violation(f"attempt {evidence.attempt} of {evidence.work_id} counted; the live lease is {held}")
        if event.at_ms > self._leases.until.get(evidence.work_id, event.at_ms):
            raise Violation(f"work {evidence.work_id}: evidence counted after the lease's end")
