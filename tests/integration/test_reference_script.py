"""The program that bus.md prints, run as it stands there against real servers, with the login of an operator."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from schemas import subjects
from schemas.generate import contract, script
from schemas.queries import Query
from tests.plane import WAIT_S, ControlPlane, control_plane, eventually

BUS = Path(__file__).parents[2] / "docs" / "reference" / "bus.md"


@pytest.fixture
async def plane(postgres_dsn: str, nats_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(postgres_dsn, nats_url) as made:
        yield made


async def run(source: Path, nats_operator_url: str) -> tuple[int | None, list[str], str]:
    """Run the program in a folder where nothing of Tenure can be imported."""
    url = urlsplit(nats_operator_url)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "TENURE_NATS_URL": f"nats://{url.hostname}:{url.port}",
        "TENURE_NATS_USER": url.username or "",
        "TENURE_NATS_PASSWORD": url.password or "",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, source.name, cwd=source.parent, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    return process.returncode, out.decode().splitlines(), err.decode()


async def test_the_printed_program_works(plane: ControlPlane, nats_operator_url: str, tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)\n```", BUS.read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "client.py"
    program.write_text(source)
    code, told, errors = await run(program, nats_operator_url)
    assert (code, errors) == (0, "")
    assert told == ["accepted 1 None None", "stored in COMMANDS as 1", "accepted"]

    durable = script.body()["command_id"] + "_durable"
    for command_id in (script.body()["command_id"], durable):
        answer = await plane.reader.answer("receipt", Query(id=command_id))
        assert [row["outcome"] for row in answer.rows] == ["accepted"]

    async def taken() -> bool:
        info = await plane.nc.jetstream().stream_info(subjects.STREAM_COMMANDS)
        return info.state.messages == 0

    await eventually(taken, "the durable copy was decided and taken from the stream")
    code, told, errors = await run(program, nats_operator_url)
    assert (code, errors, told[0]) == (0, "", "accepted 1 None None")


async def test_events_have_the_headers_of_the_reference(plane: ControlPlane) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await plane.command("node.enrol", node_id="n1", credential_sha256="ab" * 32, traceparent=trace)

    async def published() -> bool:
        info = await plane.nc.jetstream().stream_info(subjects.STREAM_EVENTS)
        return info.state.messages == 1

    await eventually(published, "the event is on EVENTS")
    headers = (await plane.nc.jetstream().get_msg(subjects.STREAM_EVENTS, 1)).headers or {}
    (channel,) = [each for each in contract.CHANNELS if each.constant == "EVT"]
    said = {getattr(subjects, name) for name in channel.headers}
    assert said == {name for name in headers if not name.startswith(("Nats-Expected-", "Nats-Batch-"))}
    assert headers[subjects.HEADER_MSG_ID] == headers[subjects.HEADER_POSITION] == "1"
    assert headers[subjects.HEADER_TRACEPARENT] == trace
