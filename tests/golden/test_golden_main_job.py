"""The golden histories: they fold to the states they always had, pass the auditor, and do not survive tampering.

If a test here fails after a change of `domain` or `schemas`, the change breaks logs that exist. Do not record
anew: give the event a new version with an upcaster, or find another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from domain.audit import Auditor
from schemas import events as ev
from schemas.events import TOPICS
from schemas.evidence import SignedEvidence
from services.audit import audit
from services.control.intake import signature_valid
from tests.golden.record import (
    GAINED,
    HISTORIES,
    NEWEST,
    Recorded,
    digest_file,
    history_file,
    read,
    recorded,
    sign,
    states_digest,
    tell,
    written,
)
from tests.unit.control.faulty import log_of
from tests.unit.domain.story import Line, audited, folded

Lines = list[Line]


@pytest.fixture(scope="module", params=HISTORIES)
def history(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def lines(history: str) -> Lines:
    return read(history_file(history).read_text())


def judged(lines: Lines) -> Auditor:
    return audited(lines, signature_valid)


def with_event(lines: Lines, place: int, **fields: Any) -> Lines:
    """The history with one event's fields changed."""
    event = msgspec.structs.replace(lines[place].event, **fields)
    return [*lines[:place], lines[place]._replace(event=event), *lines[place + 1 :]]


def accepted_evidence(lines: Lines) -> Iterator[tuple[int, SignedEvidence]]:
    for place, line in enumerate(lines):
        signed = getattr(line.event, "signed", None)
        if signed is not None and not isinstance(line.event, ev.EvidenceRejected):
            yield place, signed


def place_of(lines: Lines, kind: type[ev.Event]) -> int:
    return next(place for place, line in enumerate(lines) if isinstance(line.event, kind))


# --- as it was recorded -------------------------------------------------------------------------------------


def test_it_folds_to_the_states_it_always_had(lines: Lines, history: str) -> None:
    digest = states_digest(folded(lines), GAINED.get(history, frozenset()))
    assert digest == digest_file(history).read_text().strip()


def test_it_passes_the_auditor_with_every_signature(lines: Lines) -> None:
    auditor = judged(lines)
    assert (auditor.violations, auditor.stale) == ([], [])
    assert auditor.signatures_checked == len(list(accepted_evidence(lines))) > 10
    assert [finding.what.partition(":")[0] for finding in auditor.rejected] == ["GENERATION_FENCED", "UNKNOWN_STREAM"]


async def test_the_audit_of_a_log_that_holds_it_says_consistent(lines: Lines) -> None:
    report = await audit(await log_of(lines), None)
    assert report.consistent
    assert (report.events, report.position) == (len(lines), len(lines))


def test_the_newest_has_every_kind_of_event() -> None:
    lines = read(history_file(NEWEST).read_text())
    assert {type(line.event) for line in lines} == set(TOPICS.values())
    assert any(isinstance(line.event, ev.LeaseGranted) and line.event.reserved is not None for line in lines)


def test_the_story_is_told_today_as_it_was_recorded() -> None:
    """The same commands give the same events, byte for byte."""
    assert written(recorded(tell().lines)) == history_file(NEWEST).read_text()


def test_no_line_has_a_secret(history: str) -> None:
    text = history_file(history).read_text()
    assert "secret-number" not in text
    assert "own credential" not in text
    first = msgspec.json.decode(text.splitlines()[0], type=Recorded)
    assert (first.position, first.version) == (1, 1)


# --- tampered with ------------------------------------------------------------------------------------------


def test_any_byte_of_a_statement(lines: Lines) -> None:
    for place, signed in accepted_evidence(lines):
        for at in range(0, len(signed.payload), 41):
            other = "0" if signed.payload[at] != "0" else "1"
            payload = signed.payload[:at] + other + signed.payload[at + 1 :]
            changed = with_event(lines, place, signed=SignedEvidence(payload, signed.signature))
            assert judged(changed).violation_count > 0, (lines[place], at)


def test_a_statement_signed_by_another_generation(lines: Lines) -> None:
    for place, signed in accepted_evidence(lines):
        forged = SignedEvidence(signed.payload, sign("9", signed.payload))
        assert judged(with_event(lines, place, signed=forged)).violation_count == 1


def test_a_result_that_its_statement_does_not_give(lines: Lines) -> None:
    for place, line in enumerate(lines):
        event = line.event
        if isinstance(event, ev.WorkFailed | ev.WorkProgressed) and event.signed is not None:
            fields: dict[str, Any] = {"stage": "ready"} if isinstance(event, ev.WorkProgressed) else {"message": "x"}
            if "Probed" in str(event) or '"probed"' in event.signed.payload:
                continue  # a shortfall is the control plane's judgement, in its own words
            assert judged(with_event(lines, place, **fields)).violation_count == 1
        if isinstance(event, ev.WorkCompleted):
            other = next(
                other.event.result for other in lines
                if isinstance(other.event, ev.WorkCompleted) and other.event.result != event.result
            )  # fmt: skip
            assert judged(with_event(lines, place, result=other)).violation_count > 0


def test_swapped_versions(lines: Lines) -> None:
    for stream in {line.stream for line in lines}:
        places = [place for place, line in enumerate(lines) if line.stream == stream]
        for first, second in pairwise(places):
            swapped = list(lines)
            swapped[first] = lines[first]._replace(version=lines[second].version)
            swapped[second] = lines[second]._replace(version=lines[first].version)
            assert judged(swapped).violation_count >= 2


def test_an_event_that_is_missing_from_the_middle_of_its_stream(lines: Lines) -> None:
    for place, line in enumerate(lines):
        if any(later.stream == line.stream for later in lines[place + 1 :]):
            assert judged([*lines[:place], *lines[place + 1 :]]).violation_count > 0


def test_a_forged_approval(lines: Lines) -> None:
    place = place_of(lines, ev.ApprovalGranted)
    other_digest = judged(with_event(lines, place, candidate_digest="a" * 64))
    assert other_digest.stale_count == 1
    assert "deployed without a standing approval" in {finding.what for finding in other_digest.violations}
    assert judged(with_event(lines, place, approver="the director")).violation_count == 1
    deployed = place_of(lines, ev.DeploymentCreated)
    late = list(lines)
    late[place], late[deployed] = (
        lines[deployed]._replace(position=lines[place].position),
        lines[place]._replace(position=lines[deployed].position),
    )
    assert "deployed without a standing approval" in {finding.what for finding in judged(late).violations}


def test_names_that_do_not_name_their_content(lines: Lines) -> None:
    for kind, fields in (
        (ev.ArtifactRegistered, {"bytes": 1}),
        (ev.WorkerRegistered, {"fingerprint": "a" * 64}),
        (ev.CandidateCreated, {"candidate_digest": "a" * 64}),
        (ev.CandidateCreated, {"evidence_sha256": "a" * 64}),
        (ev.DeploymentCreated, {"artifact_id": "a" * 64}),
        (ev.ArtifactVerified, {"location": "elsewhere"}),
    ):
        assert judged(with_event(lines, place_of(lines, kind), **fields)).violation_count > 0, kind


def test_another_session_key(lines: Lines) -> None:
    changed = with_event(lines, place_of(lines, ev.WorkerRegistered), session_public_key="AAAA")
    assert judged(changed).violation_count >= 4
