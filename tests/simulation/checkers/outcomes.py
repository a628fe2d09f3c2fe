"""7: one outcome for each command id, whoever hears it and however often; one state change for each evidence id.

In the log: a command id has one receipt, and all events of a command are in the transaction of that receipt. Only the
control plane's own commands have none. Evidence counts once, or is refused once, never both.

On the wire: an answer is told after its receipt is committed, and says what the receipt says. What may be sent again
(UNAVAILABLE, OVERLOADED, CONFLICT) is no outcome. DUPLICATE_COMMAND is told only for another body.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from schemas import events as ev
from schemas.codes import Code
from schemas.replies import Reply
from services.eventlog.port import LogRow, NewReceipt
from tests.simulation.checkers import Checker, Violation
from tests.simulation.checkers.fencing import decode_evidence

CONTROL = "control"
NO_OUTCOME = (Code.UNAVAILABLE, Code.OVERLOADED, Code.CONFLICT)
NO_COMMAND = (Code.COMMAND_MALFORMED, Code.COMMAND_UNKNOWN, Code.COMMAND_NOT_DURABLE)
_decode_reply = msgspec.json.Decoder(Reply).decode


class _Identified(msgspec.Struct):
    command_id: str


_decode_id = msgspec.json.Decoder(_Identified).decode


class Outcomes(Checker):
    def __init__(self) -> None:
        self._receipts: dict[str, Reply] = {}
        self._changed: set[str] = set()  # command ids whose events are in the log
        self._evidence: set[str] = set()
        self._bodies: dict[str, bytes] = {}
        self._events: list[ev.Event] = []

    def see(self, row: LogRow, event: ev.Event) -> None:
        self._events.append(event)
        signed = getattr(event, "signed", None)
        if signed is None:
            return
        evidence_id = decode_evidence(signed.payload).evidence_id
        if evidence_id in self._evidence:
            raise Violation(f"evidence {evidence_id} changed the log twice")
        self._evidence.add(evidence_id)

    def committed(self, receipts: Iterable[NewReceipt]) -> None:
        """The receipts of the transaction whose events were just seen."""
        mine: set[str] = set()
        for receipt in receipts:
            if receipt.command_id in self._receipts:
                raise Violation(f"command {receipt.command_id} has two receipts")
            reply = _decode_reply(receipt.outcome)
            if reply.command_id != receipt.command_id or reply.code in NO_OUTCOME:
                raise Violation(f"the receipt of {receipt.command_id} is {reply}")
            self._receipts[receipt.command_id] = reply
            mine.add(receipt.command_id)
        self._check_events(mine)

    def _check_events(self, mine: set[str]) -> None:
        events, self._events = self._events, []
        changed = {event.command_id for event in events}
        for event in events:
            if event.command_id in self._changed:
                raise Violation(f"command {event.command_id} changed the log again: {type(event).__name__}")
            if event.command_id not in mine and event.actor != CONTROL:
                raise Violation(f"command {event.command_id} of {event.actor} changed the log without a receipt")
            if event.command_id in mine and self._receipts[event.command_id].outcome != "accepted":
                raise Violation(f"command {event.command_id} was rejected and changed the log")
        self._changed |= changed

    def heard(self, body: bytes, data: bytes) -> Reply:
        """Somebody sent `body` and was answered this."""
        reply = _decode_reply(data)
        if reply.code is Code.INTERNAL_ERROR:
            raise Violation(f"a command was answered with a defect: {reply.message}")
        if reply.code in NO_OUTCOME or reply.code in NO_COMMAND:
            return reply
        ident = _decode_id(body).command_id
        receipt = self._receipts.get(ident)
        if receipt is None:
            raise Violation(f"command {ident} was answered {reply.outcome} without a receipt in the log")
        if reply.code is Code.DUPLICATE_COMMAND:
            if self._bodies.get(ident) == body:
                raise Violation(f"command {ident} was called another one, and it was the same")
            return reply
        if self._bodies.setdefault(ident, body) != body:
            raise Violation(f"command {ident} had an outcome for two bodies")
        self._compare(ident, receipt, reply)
        return reply

    def _compare(self, ident: str, receipt: Reply, reply: Reply) -> None:
        first = (receipt.command_id, receipt.outcome, receipt.code, receipt.message, receipt.detail)
        told = (reply.command_id, reply.outcome, reply.code, reply.message, reply.detail)
        more = {key: value for key, value in reply.result.items() if key not in receipt.result}
        kept = {key: value for key, value in reply.result.items() if key in receipt.result}
        if first != told or kept != receipt.result or (more and reply.repeated):
            raise Violation(f"command {ident} has the outcome {receipt} and was answered {reply}")

    def stored(self, receipts: Sequence[str]) -> None:
        """At rest: the command ids that the log has receipts of."""
        if set(receipts) != self._receipts.keys():
            raise Violation(f"receipts were lost or made up: {sorted(set(receipts) ^ self._receipts.keys())[:5]}")
