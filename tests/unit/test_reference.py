"""The reference says everything the contract holds, its examples are valid, and it is what the generator makes."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from schemas import codes, commands, events, evidence, queries, subjects, tokens
from schemas.generate import bus, contract, examples
from schemas.generate.__main__ import documents, main, stale
from schemas.generate.describe import ALIASES, description, fields_of, limits_text, slug, structs_in, type_text

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```json\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def page() -> str:
    return (REFERENCE / "bus.md").read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", page, re.MULTILINE)


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next of any level."""
    after = page.split(f"\n{heading}\n", 1)[1]
    return re.split(r"\n#+ ", after, maxsplit=1)[0]


# --- complete --------------------------------------------------------------------------------------------------------


def missing_from(page: str) -> list[str]:
    """What the contract holds and the page does not say."""
    said: list[tuple[str, bool]] = []
    for name, command in commands.BY_SUBJECT.items():
        said.append((name, f"\n### `{name}`\n" in page and f"`{subjects.rpc_subject(name)}`" in page))
        durable = f"durable: `{subjects.CMD}.{name}`" in page
        said.append((f"{name} durable or not", durable is (name not in commands.RPC_ONLY)))
        said += _fields_said(page, f"### `{name}`", command)
    for topic, event in events.TOPICS.items():
        said.append((topic, f"\n### `{topic}`\n" in page))
        said += [(address, f"`{address}`" in page) for address in contract.event_addresses(topic)]
        said += _fields_said(page, f"### `{topic}`", event)
    said += [(code, f"| `{code}` | {codes.ADVICE[code]} |" in page) for code in codes.Code]
    said += [(name, f"| `{name}` | `{value}` |" in page) for name, value in vars(subjects).items() if name.isupper()]
    said += [(name, f"| {name} |" in page) for name in ALIASES]
    said += [
        (name, f"| `{name}` | {value:,} |" in page)
        for name, value in (vars(tokens) | vars(queries)).items()
        if name.endswith("_MAX")
    ]
    return [name for name, found in said if not found]


def _fields_said(page: str, heading: str, struct: Any) -> list[tuple[str, bool]]:
    if f"\n{heading}\n" not in page:
        return [(heading, False)]
    text = section(page, heading)
    base = commands.Command if issubclass(struct, commands.Command) else events.Event
    return [(f"{heading} {row.name}", f"| `{row.name}` |" in text) for row in fields_of(struct, without=base)]


def test_the_page_says_everything_the_contract_holds(page: str) -> None:
    assert missing_from(page) == []


@pytest.mark.parametrize(
    "removed",
    [
        "\n### `probe.request`\n",
        "`tenure.cmd.v1.node.enrol`",
        "\n### `lease.granted.v1`\n",
        "| `LEASE_HELD` |",
        "| `WAKE` |",
    ],
)
def test_a_missing_thing_is_found(page: str, removed: str) -> None:
    assert removed in page
    assert missing_from(page.replace(removed, "")) != []


def test_every_struct_that_travels_has_a_section(page: str) -> None:
    found = set(headings(page))
    roots = [*commands.BY_SUBJECT.values(), *events.TOPICS.values(), evidence.Evidence]
    roots += [body for channel in contract.CHANNELS for body in channel.bodies + channel.replies]
    at_top = set(commands.BY_SUBJECT.values()) | set(events.TOPICS.values())
    inner = {struct for root in roots for struct in structs_in(root)} - at_top
    assert {struct.__name__ for struct in inner} <= {name.partition(" (")[0] for name in found}


def test_every_link_within_the_page_leads_somewhere(page: str) -> None:
    anchors = [slug(heading) for heading in headings(page)]
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(anchors)
    assert len(anchors) == len(set(anchors)), "two headings share an anchor"


def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^#)][^)]*)\)", page):
        assert (REFERENCE / link).exists(), link


# --- true ------------------------------------------------------------------------------------------------------------


def test_the_hand_written_tables_are_closed_over_the_contract() -> None:
    assert set(contract.EVENT_STREAMS) == set(events.TOPICS)
    assert {noun for places in contract.EVENT_STREAMS.values() for noun, _ in places} == set(events.STREAM_NOUNS)
    assert set(contract.WORKER_PROOF) == set(commands.RPC_ONLY)
    assert set(contract.HEADERS) == {name for name in vars(subjects) if name.startswith("HEADER_")}
    assert {stream.constant for stream in contract.STREAMS} == {
        name for name in vars(subjects) if name.startswith("STREAM_")
    }
    prefixes = {name for name in vars(subjects) if name.isupper() and not name.startswith(("STREAM_", "HEADER_"))}
    assert [channel.constant for channel in contract.CHANNELS] == sorted(
        prefixes, key=[channel.constant for channel in contract.CHANNELS].index
    )


def test_events_belong_to_the_streams_that_the_domain_folds_them_into() -> None:
    """The noun is the state's name: ArtifactState is folded from the `artifact-` streams."""
    fold = importlib.import_module("domain.folding.fold")
    folded: dict[type[events.Event], tuple[str, ...]]
    folded = {event: (begin.__annotations__["return"],) for event, begin in fold._BEGIN.items()}
    folded |= {event: tuple(state.__name__ for state in step[0]) for event, step in fold._STEP.items()}
    nouns = {
        events.TOPIC_OF[event]: [name.removesuffix("State").lower() for name in states]
        for event, states in folded.items()
    }
    assert nouns == {topic: [noun for noun, _ in places] for topic, places in contract.EVENT_STREAMS.items()}


def test_every_example_is_accepted_by_the_strict_decoder(page: str) -> None:
    shown = EXAMPLE.findall(page)
    decoded = [_decode(path, text) for path, text in shown]
    assert {type(value) for value in decoded} >= set(commands.BY_SUBJECT.values())
    assert len(shown) == page.count("```json")


def test_an_example_with_an_unknown_field_is_refused(page: str) -> None:
    path, text = EXAMPLE.findall(page)[0]
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        _decode(path, text.replace('"name"', '"nmae"'))


def _decode(path: str, text: str) -> Any:
    module, _, name = path.rpartition(".")
    return msgspec.json.decode(text, type=getattr(importlib.import_module(module), name))


def test_the_example_of_evidence_is_really_signed(page: str) -> None:
    text = next(text for path, text in EXAMPLE.findall(page) if path.endswith("SignedEvidence"))
    signed = msgspec.json.decode(text, type=evidence.SignedEvidence)
    assert examples.SESSION_PUBLIC_KEY in page
    key = Ed25519PublicKey.from_public_bytes(b64decode(examples.SESSION_PUBLIC_KEY))
    key.verify(b64decode(signed.signature), signed.payload.encode())
    assert msgspec.json.decode(signed.payload, type=evidence.Evidence) == examples.STATEMENT


def test_the_script_is_python_and_its_body_a_strict_command(page: str) -> None:
    (source,) = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    tree = ast.parse(source)
    body = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "BODY"
    )
    msgspec.convert(body, commands.RegisterArtifact)
    assert '"tenure.rpc.v1.artifact.register"' in source
    assert '"tenure.cmd.v1.artifact.register"' in source
    assert not re.search(r"^\s*(import|from) (schemas|domain|services|worker)", source, re.MULTILINE)


# --- described -------------------------------------------------------------------------------------------------------


def test_descriptions_come_from_the_contract() -> None:
    assert description(events.LeaseEnded, "again", bool).startswith("`again` tells whether")
    assert description(commands.EnrolNode, "credential_sha256", tokens.Digest).startswith("`credential_sha256` is the")
    assert description(commands.RegisterWorker, "session_public_key", str) == ""
    rows = {row.name: row for row in fields_of(commands.RegisterWorker)}
    assert rows["session_public_key"].description == "Ed25519 public key, raw, base64."
    assert rows["credential"].limits == "16 to 256 characters"
    assert rows["traceparent"].default == "`null`"
    assert rows["capabilities"].type == "object, [Adapter](#types) to array of [Task](#types)"


def test_types_and_limits_in_words() -> None:
    assert type_text(list[tokens.Token] | None) == "array of [Token](#types) or null"
    assert type_text(evidence.Statement) == "[Statement](#types)"
    assert type_text(evidence.WorkFailed) == "[WorkFailed (evidence)](#workfailed-evidence)"
    assert limits_text(tokens.ByteCount) == ""
    assert limits_text(tokens.DurationMs, open_alias=True) == "1 to 86,400,000"
    assert len(get_args(evidence.Statement)) == sum(
        row.name == "type" for one in get_args(evidence.Statement) for row in fields_of(one)
    )


# --- fresh -----------------------------------------------------------------------------------------------------------


def test_the_committed_reference_is_what_the_generator_makes() -> None:
    assert stale(REFERENCE) == []


def test_check_names_what_is_stale_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--check", "--out", str(tmp_path)]) == 0
    changed = tmp_path / "bus.md"
    changed.write_text(changed.read_text().replace("# The bus", "# The bus, by hand"))
    (tmp_path / "schemas" / "live.json").unlink()
    (tmp_path / "schemas" / "forgotten.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    assert main(["--check", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert [name for name in documents() | {"schemas/forgotten.json": ""} if name in told] == [
        "bus.md",
        "schemas/live.json",
        "schemas/forgotten.json",
    ]
    assert sorted(tmp_path.rglob("*")) == before
    assert "by hand" in changed.read_text()


def test_two_processes_make_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        command = [sys.executable, "-m", "schemas.generate", "--out", str(out)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, timeout=60)
        made.append({str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert made[0] == made[1]
    assert set(made[0]) == set(documents())


def test_only_the_entry_point_touches_files() -> None:
    sources = (ROOT / "schemas" / "generate").glob("*.py")
    touching = [path.name for path in sources if re.search(r"open\(|write_text|pathlib", path.read_text())]
    assert touching == ["__main__.py"]
    assert bus.GENERATED in (REFERENCE / "bus.md").read_text()
