"""What a command prints and how it exits: a table or one JSON document on stdout, words on stderr, documented codes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from projections.rows import CandidateRow
from schemas import subjects
from schemas.codes import ADVICE, Code, Refusal
from schemas.devices import DeviceReading
from schemas.live import LiveAnswer
from schemas.replies import Reply
from schemas.serving import Answer
from schemas.tasks.text import Embedded
from services.cli.app import app
from services.cli.exits import CONFLICT, OK, REFUSED, UNREACHABLE, USAGE, exit_code
from services.cli.screen import evidence, formats
from services.cli.screen.plain import plain
from services.cli.screen.terminal import Terminal
from services.cli.screen.waiting import completed
from services.client import Client
from services.settings import Settings
from tests.fake_wire import (
    ARTIFACT,
    DIGEST,
    FINGERPRINT,
    PROFILE,
    FakeWire,
    deployment,
    entry,
    live_answer,
    node,
    residency,
    work,
)

MEMORY = {
    "process_before": {"bytes": 1_048_576, "unavailable": None},
    "process_peak": {"bytes": 3 * 1_048_576, "unavailable": None},
    "process_loaded": {"bytes": 2 * 1_048_576, "unavailable": None},
    "process_after": {"bytes": 0, "unavailable": None},
    "device_used_before": {"bytes": None, "unavailable": "no NVML here"},
    "reclaimed": {"bytes": 2 * 1_048_576, "unavailable": None},
    "reclaim_complete": True,
}


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWire]:
    """The commands run on a fake bus; everything above the port is real."""
    fake = FakeWire()

    async def connect(settings: Settings, actor: str | None = None) -> Client:
        return Client(fake, actor or "tester")

    monkeypatch.setattr(Client, "connect", connect)
    yield fake
    assert fake.closed or not fake.sent


def tenure(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)


def candidate(**fields: Any) -> CandidateRow:
    values: dict[str, Any] = {
        "id": "cand0123456789ab", "position": 4, "digest": DIGEST, "artifact_id": ARTIFACT, "profile_id": PROFILE,
        "fingerprint": FINGERPRINT, "node_id": "local", "probe_id": "cand0123456789ab", "adapter": "adapter_one",
        "task": "embedding", "status": "lab_ready", "production": False, "approved_by": None,
        "approved_at_ms": None, "created_at_ms": 1, **fields,
    }  # fmt: skip
    return CandidateRow(**values)


def answer(reply: Reply) -> Any:
    return lambda payload: msgspec.json.encode(reply)


def test_ps_as_a_table(wire: FakeWire) -> None:
    wire.put(node(), deployment(), residency())
    wire.live["local"] = [live_answer(entry())]
    ran = tenure("ps")
    assert ran.exit_code == OK
    header, row = ran.stdout.splitlines()
    assert header.split()[:5] == ["ID", "NAME", "CAPABILITY", "NODE", "STATE"]
    assert row.split()[:5] == ["dep012345678", "search", "embedding", "local", "loaded"]
    assert "117.7 MiB" in row


def test_ps_as_one_document_and_nothing_else(wire: FakeWire) -> None:
    wire.put(node(), deployment(), residency())
    ran = tenure("ps", "--json")
    (row,) = json.loads(ran.stdout)["deployments"]
    assert (row["state"], row["log_state"], row["pid"]) == ("unknown", "resident", None)
    assert ran.stderr == ""


@pytest.mark.parametrize("width", [60, 80, 100, 1_000])
def test_a_table_leaves_nothing_out_on_a_narrow_screen(width: int) -> None:
    terminal = Terminal()
    terminal.out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    ident, sentence = "0123456789abcdef" * 2, "the node hashed everything itself, and every digest is what was declared"
    terminal.table(("STEP", "HELD", "ID", "PROVEN"), [("artifact verify", "held", ident, sentence)])
    lines = terminal.out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0].split() == ["STEP", "HELD", "ID", "PROVEN"]
    assert lines[1].startswith(f"artifact verify   held   {ident}   the node")
    assert " ".join(line[lines[0].index("PROVEN") :].strip() for line in lines[1:]) == sentence
    assert max(map(len, lines)) <= max(width, 15 + 4 + 32 + 40 + 3 * 3)


def test_no_rows_are_said_on_stderr_and_are_an_empty_list_in_json(wire: FakeWire) -> None:
    ran = tenure("ps")
    assert (ran.stdout, "tenure deploy" in ran.stderr) == ("", True)
    assert json.loads(tenure("ps", "--json").stdout) == {"deployments": []}


def test_a_refusal_is_code_message_and_advice_without_a_traceback(wire: FakeWire) -> None:
    ran = tenure("load", "nothing")
    assert ran.exit_code == REFUSED
    assert ran.stdout == ""
    assert ran.stderr.splitlines()[0] == "UNKNOWN_STREAM: no deployment 'nothing'"
    assert "tenure ps" in ran.stderr


def test_a_refusal_in_json_is_a_document_too(wire: FakeWire) -> None:
    wire.put(deployment())
    reply = Reply("rejected", "c", code=Code.RESIDENCY_CONFLICT, message="it is loading", detail={"state": "loading"})
    wire.answers[subjects.rpc_subject("job.request")] = answer(reply)
    ran = tenure("unload", "search", "--json")
    assert ran.exit_code == CONFLICT
    error = json.loads(ran.stdout)["error"]
    assert error == {
        "code": "RESIDENCY_CONFLICT", "message": "it is loading", "advice": ADVICE[Code.RESIDENCY_CONFLICT],
        "detail": {"state": "loading"},
    }  # fmt: skip


def test_no_control_plane_is_unreachable(wire: FakeWire) -> None:
    wire.put(deployment())
    assert tenure("load", "search").exit_code == UNREACHABLE


def test_messages_with_brackets_are_printed_as_they_are(wire: FakeWire) -> None:
    wire.put(deployment())
    reply = Reply("rejected", "c", code=Code.NODE_ABSENT, message="[bold]node[/] [x]")
    wire.answers[subjects.rpc_subject("job.request")] = answer(reply)
    assert "NODE_ABSENT: [bold]node[/] [x]" in tenure("load", "search").stderr


@pytest.mark.parametrize(
    "arguments",
    [("approve", "cand"), ("artifact", "add", "/nowhere"), ("nonsense",), ("deploy", "cand"),
     ("events", "tail", "--last", "0"), ("profile", "create", "abcd", "--limit", "load_ms=soon"),
     ("profile", "create", "abcd", "--limit", "nothing=1"),
     ("artifact", "add", "/tmp", "--exclude", "*.bin")],
)  # fmt: skip
def test_a_wrong_command_line_is_usage(wire: FakeWire, arguments: tuple[str, ...]) -> None:
    ran = tenure(*arguments)
    assert ran.exit_code == USAGE
    assert ran.stdout == ""


def test_every_code_has_an_exit_code_that_is_documented() -> None:
    assert {exit_code(code) for code in Code} == {REFUSED, CONFLICT, UNREACHABLE}
    assert exit_code(Code.NAME_TAKEN) == exit_code(Code.CONFLICT) == CONFLICT
    assert exit_code(Code.UNAVAILABLE) == UNREACHABLE


def test_loading_shows_each_stage_on_stderr_and_the_evidence_on_stdout(wire: FakeWire) -> None:
    wire.put(node(), deployment(), work("queued", position=5))
    job = Reply("accepted", "c", position=5, result={"work_id": "work0123456789", "state": "loading"})
    wire.answers[subjects.rpc_subject("job.request")] = answer(job)
    health = {"process": True, "runtime": True, "model": True, "capability": True, "latency_ms": 5.0}
    result = {"type": "loaded", "load_ms": 812.0, "child_pid": 77, "health": health, "memory": MEMORY}
    stages = iter([work("loading", position=6), work("completed", position=7, result=result)])
    wire.on_wait = lambda: wire.put(next(stages))
    ran = tenure("load", "search")
    assert ran.exit_code == OK, ran.stderr
    told = [line.split(": ")[1].split()[0] for line in ran.stderr.splitlines()]
    assert told == ["queued", "loading", "completed"]
    assert "load 812 ms" in ran.stdout
    assert "unavailable: no NVML here" in ran.stdout


def test_what_already_holds_is_done_without_work(wire: FakeWire) -> None:
    wire.put(node(), deployment())
    held = Reply("accepted", "c", result={"work_id": None, "state": "resident"})
    wire.answers[subjects.rpc_subject("job.request")] = answer(held)
    ran = tenure("load", "search", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["jobs"][0]["state"]) == (OK, "resident")


@pytest.mark.parametrize(
    ("kind", "result", "code"),
    [
        ("unload", {"memory": {**MEMORY, "reclaim_complete": False}}, "RECLAIM_INCOMPLETE"),
        ("health", {"health": {"process": True, "runtime": True, "model": False}}, "HEALTH_FAILED"),
    ],
)  # fmt: skip
def test_completed_work_that_does_not_show_what_was_asked_for_is_no_success(
    wire: FakeWire, kind: str, result: dict[str, Any], code: str
) -> None:
    wire.put(node(), deployment(), work("completed", kind=kind, result=result))
    job = Reply("accepted", "c", result={"work_id": "work0123456789", "state": "resident"})
    wire.answers[subjects.rpc_subject("job.request")] = answer(job)
    ran = tenure(kind, "search")
    assert ran.exit_code == REFUSED
    assert ran.stderr.splitlines()[-2].startswith(f"{code}: ")


def test_failed_and_cancelled_work_are_refusals_with_their_code() -> None:
    for row, code in (
        (work("failed", code="OUT_OF_MEMORY", message="too big"), Code.OUT_OF_MEMORY),
        (work("failed", code="FROM_A_NEWER_RELEASE"), Code.INTERNAL_ERROR),
        (work("cancelled"), Code.WORK_CANCELLED),
    ):
        with pytest.raises(Refusal) as caught:
            completed(row)
        assert caught.value.code is code


def test_approving_sends_exactly_the_digest_that_was_given(wire: FakeWire) -> None:
    wire.put(candidate())
    other = "e" * 64
    reply = Reply("rejected", "c", code=Code.APPROVAL_MISMATCH, message="another digest")
    wire.answers[subjects.rpc_subject("approval.grant")] = answer(reply)
    assert tenure("approve", "cand0123", "--digest", other).exit_code == REFUSED
    body = json.loads(wire.sent[-1][1])
    assert (body["candidate_digest"], body["candidate_id"]) == (other, "cand0123456789ab")


def embedding(wire: FakeWire, texts: int) -> None:
    wire.put(node(), deployment(), residency())
    vectors = Embedded(bytes(8 * texts), texts, 2, [3] * texts, [False] * texts)
    result = Answer(vectors, ARTIFACT, PROFILE, "3", compute_ms=1.5)
    subject = subjects.serve_subject("local", "3", "dep0123456789ab")
    wire.answers[subject] = lambda payload: msgspec.msgpack.encode(result)


def test_invoke_gives_people_a_summary_and_programs_the_vectors(wire: FakeWire) -> None:
    embedding(wire, 2)
    ran = tenure("invoke", "search", "a text", "[bold]another[/]")
    assert ran.exit_code == OK
    assert "VECTOR (2)" in ran.stdout
    assert "[bold]another[/]" in ran.stdout
    found = json.loads(tenure("invoke", "search", "a", "b", "--json").stdout)
    assert [each["vector"] for each in found["embeddings"]] == [[0.0, 0.0], [0.0, 0.0]]
    assert found["dimensions"] == 2


def test_invoke_reads_lines_of_text_and_json(wire: FakeWire) -> None:
    embedding(wire, 3)
    ran = tenure("invoke", "search", "--json", stdin='plain words\n"a JSON string"\n\n{"text": "an object", "id": 1}\n')
    texts = [each["text"] for each in json.loads(ran.stdout)["embeddings"]]
    assert texts == ["plain words", "a JSON string", "an object"]


@pytest.mark.parametrize("stdin", ['{"text": 1}\n', '{"no": "text"}\n', '"unfinished\n', "", "\n\n"])
def test_invoke_refuses_lines_without_a_text(wire: FakeWire, stdin: str) -> None:
    embedding(wire, 1)
    ran = tenure("invoke", "search", "--json", stdin=stdin)
    assert ran.exit_code == REFUSED
    assert json.loads(ran.stdout)["error"]["code"] == "INPUT_INVALID"


def test_a_short_answer_is_not_taken_for_all(wire: FakeWire) -> None:
    embedding(wire, 1)
    ran = tenure("invoke", "search", "a", "b")
    assert ran.exit_code == REFUSED
    assert "INTERNAL_ERROR" in ran.stderr


def test_nodes_show_whether_they_answer(wire: FakeWire) -> None:
    wire.put(node(), node("silent"))
    wire.live["local"] = [LiveAnswer("local", "3", "boot", True, [])]
    found = json.loads(tenure("node", "list", "--json").stdout)
    assert found["answers"] == {"local": True, "silent": False}


GPU_NODE = {"environment": {"devices": [{"kind": "cuda", "index": 0, "name": "H100", "memory_bytes": None}]}}


def test_node_devices_as_a_table_and_as_a_document(wire: FakeWire) -> None:
    wire.put(node(**GPU_NODE), node("silent", **GPU_NODE), deployment())
    wire.put(msgspec.structs.replace(residency(), reserved_bytes=4_096, reserved_device=0))
    reading = DeviceReading(0, 8_192, 1_024, 0, 1_024)
    answer = LiveAnswer("local", "3", "boot", True, [], [reading], 250, 1_024)
    wire.live["local"] = [answer]
    lines = tenure("node", "devices").stdout.splitlines()
    assert lines[0].split()[:9] == ["NODE", "DEVICE", "NAME", "TOTAL", "USED", "OWN", "EXTERNAL", "RESERVED", "BY"]
    assert "search 4.0 KiB" in lines[1]
    assert "2.0 KiB" in lines[1]  # 8 less 1 external, 4 reserved, 1 always free
    assert "unavailable" in lines[2]
    assert "the worker does not answer" in lines[2]
    first, second = json.loads(tenure("node", "devices", "--json").stdout)["devices"]
    assert (first["node_id"], first["external_bytes"], first["available_bytes"]) == ("local", 1_024, 2_048)
    assert (first["age_ms"], first["generation"], first["reserved_by"][0]["name"]) == (250, "3", "search")
    assert (second["node_id"], second["used_bytes"], second["generation"]) == ("silent", None, None)
    assert [
        each["node_id"] for each in json.loads(tenure("node", "devices", "silent", "--json").stdout)["devices"]
    ] == ["silent"]
    assert tenure("node", "devices", "nobody").exit_code == REFUSED
    assert "0: 1.0 KiB of 8.0 KiB used" in tenure("node", "list").stdout


def test_node_devices_of_nodes_without_any(wire: FakeWire) -> None:
    wire.put(node())
    assert json.loads(tenure("node", "devices", "--json").stdout) == {"devices": []}
    ran = tenure("node", "devices")
    assert (ran.stdout, "no devices" in ran.stderr) == ("", True)


def test_settings_that_cannot_be_read_are_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_LEASE_MS", "soon")
    ran = tenure("ps")
    assert ran.exit_code == USAGE
    assert "TENURE_LEASE_MS" in ran.stderr


def test_what_a_probe_found_is_shown_whole() -> None:
    attempts = [
        {"action": "connect", "refused": True, "detail": "EACCES"},
        {"action": "read /etc/passwd", "refused": False, "detail": "read 900 bytes"},
    ]
    offline = {"applied": ["landlock"], "missing": ["seccomp"], "attempts": attempts, "proven": False}
    shown = dict(evidence.statement({"offline": offline, "memory": MEMORY}))
    assert shown["offline"] == "NOT PROVEN: 1 of 2 attempts refused"
    assert shown["got through"] == "read /etc/passwd: read 900 bytes"
    assert shown["layers missing"] == "seccomp"
    assert "not tried" not in shown
    assert shown["reclaimed"] == "2.0 MiB (complete)"


def test_an_attempt_that_could_not_be_tried_is_neither_refused_nor_through() -> None:
    attempts = [
        {"action": "connect", "refused": True, "detail": "EACCES", "outside": "connected", "tried": True},
        {"action": "keyring", "refused": False, "detail": "could not be tried, outside: EPERM", "tried": False},
    ]
    offline = {"applied": ["landlock"], "missing": [], "attempts": attempts, "proven": True}
    shown = dict(evidence.statement({"offline": offline}))
    assert shown["offline"] == "proven: 1 of 1 attempts refused, 1 could not be tried"
    assert shown["not tried"] == "keyring: could not be tried, outside: EPERM"
    assert "got through" not in shown


def test_memory_is_shown_by_instrument_and_one_reason_once() -> None:
    unmeasured = {"bytes": None, "unavailable": "NVML: GPU is lost"}
    memory = {
        **MEMORY, "device_total": unmeasured, "device_used_before": unmeasured, "device_used_loaded": unmeasured,
        "allocator_reserved_loaded": {"bytes": 4_096}, "allocator_reserved_after": {"bytes": 1_024},
        "allocator_reclaimed": {"bytes": 3_072}, "cgroup_limit": {"bytes": None, "unavailable": "no limit"},
        "cgroup_current": {"bytes": 2_048},
    }  # fmt: skip
    shown = dict(evidence.statement({"memory": memory}))
    assert shown["device"] == "unavailable: NVML: GPU is lost"
    assert shown["allocator reserved"] == "loaded 4.0 KiB, after 1.0 KiB"
    assert (shown["reclaimed by unloading"], shown["reclaimed"]) == ("3.0 KiB", "2.0 MiB (complete)")
    assert shown["cgroup"] == "limit unavailable: no limit, current 2.0 KiB"
    lost = {**memory, "device_own_loaded": unmeasured, "device_own_after": unmeasured, "device_external": unmeasured}
    again = dict(evidence.statement({"memory": lost}))
    assert [label for label in again if label.startswith("device")] == ["device"]  # the others have no other reason
    ours = {**lost, "device_own_loaded": {"bytes": 4_096}}
    assert dict(evidence.statement({"memory": ours}))["device, own"] == (
        "loaded 4.0 KiB, after unavailable: NVML: GPU is lost"
    )
    assert "device, own" not in shown  # an earlier worker did not tell it


def test_of_a_loaded_model_nothing_is_expected_back_yet() -> None:
    waits = {"bytes": None, "unavailable": "the model is still loaded"}
    memory = {**MEMORY, "reclaimed": waits, "reclaim_complete": False, "reclaim_reason": waits["unavailable"]}
    assert dict(evidence.statement({"memory": memory}))["reclaimed"] == "unavailable: the model is still loaded"


def test_reclaim_that_was_not_measured_says_so_and_is_no_success(wire: FakeWire) -> None:
    memory = {**MEMORY, "reclaim_complete": False, "reclaim_reason": "not measured: NVML: Driver Not Loaded"}
    assert dict(evidence.statement({"memory": memory}))["reclaimed"] == (
        "2.0 MiB (NOT complete: not measured: NVML: Driver Not Loaded)"
    )
    wire.put(node(), deployment(), work("completed", kind="unload", result={"memory": memory}))
    job = Reply("accepted", "c", result={"work_id": "work0123456789", "state": "resident"})
    wire.answers[subjects.rpc_subject("job.request")] = answer(job)
    ran = tenure("unload", "search")
    assert ran.exit_code == REFUSED
    assert (
        "RECLAIM_INCOMPLETE: unloaded, and reclaim is incomplete: not measured: NVML: Driver Not Loaded" in ran.stderr
    )


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (840, "840 ms"), (3_200, "3.2 s"), (302_000, "5m 2s"), (11_400_000, "3h 10m"),
     (187_200_000, "2d 4h")],
)  # fmt: skip
def test_durations(milliseconds: int, text: str) -> None:
    assert formats.span(milliseconds) == text


def test_sizes_and_ages() -> None:
    assert [formats.size(count) for count in (None, 0, 1_023, 1_536, 90_868_376)] == [
        "-", "0 B", "1023 B", "1.5 KiB", "86.7 MiB",
    ]  # fmt: skip
    assert formats.age(10_000, now_ms=9_000) == "0s"
    assert formats.age(None) == "-"


def test_what_would_steer_a_terminal_is_shown_as_text() -> None:
    assert plain("a\x1b[2Jb\rc\x9b\u202ed") == "a\\x1b[2Jb\\rc\\x9b\\u202ed"
    assert plain("one\n\ttwo, für 文\u200f") == "one\n\ttwo, für 文\u200f"


def test_tables_and_messages_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.table(("NAME",), [("\x1b[31mred",)])
    terminal.facts([("name", "\x1b[31mred")])
    terminal.say("\x1b[31mred")
    terminal.refuse(Refusal(Code.CHILD_DIED, "it said \x1b]0;title\x07"))
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert shown.out.count("\\x1b[31mred") == 2
    assert "\\x1b]0;title\\x07" in shown.err


def test_a_result_in_a_pipe_is_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().print("\u202eabc")
    assert "\u202eabc" in capsys.readouterr().out
