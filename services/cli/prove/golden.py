"""`tenure golden`: golden probes, inputs with the results a model must come near to under a profile.

A file of golden probes is a JSON list, which `tenure profile create --golden FILE` puts into a profile. `record` asks a
deployment and adds its answer as the expected one: right for a model whose answers have been looked at, or to hold
another node or a later release to what this one says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from projections.rows import DeploymentRow
from schemas.codes import Code, Refusal
from schemas.tasks.golden import GOLDENS_MAX, GoldenProbe
from services.cli import options
from services.cli.context import Context, run
from services.cli.invoke.asking import request_in
from services.cli.invoke.files import check_place

app = typer.Typer(no_args_is_help=True, help="Golden probes: inputs with expected results that a profile carries.")


def read_goldens(path: Path) -> list[GoldenProbe]:
    """The golden probes in a file. Raises Refusal."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[GoldenProbe])
    except msgspec.DecodeError as error:
        raise Refusal(Code.INPUT_INVALID, f"{path} is not a list of golden probes: {error}") from error


@app.command("record")
def record_command(
    deployment: options.Deployment,
    name: Annotated[str, typer.Argument(help="The golden probe's name.", metavar="NAME")],
    request: Annotated[Path, typer.Option("--request", help="A JSON file with the request.", exists=True)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of golden probes to add to.")],
    tolerance: Annotated[float, typer.Option("--tolerance", help="The largest distance that passes.", min=0.0)] = 0.0,
    node: options.NodeMaybe = None,
    as_json: options.Json = False,
) -> None:
    """Ask a deployment and add its answer to a file as what is expected from now on."""

    async def command(context: Context) -> None:
        check_place(out)
        known = read_goldens(out) if out.exists() else []
        if any(probe.name == name for probe in known):
            raise Refusal(Code.NAME_TAKEN, f"{out} has a golden probe `{name}` already")
        if len(known) >= GOLDENS_MAX:
            raise Refusal(Code.INPUT_TOO_LARGE, f"{out} has {len(known)} golden probes; a profile carries no more")
        row = await context.client.one(DeploymentRow, deployment)
        asked = request_in(request, row.capability)
        answer = await context.client.invoke(row, asked, node)
        probe = GoldenProbe(name, asked, answer.result, tolerance)
        out.write_bytes(msgspec.json.format(msgspec.json.encode([*known, probe]), indent=1) + b"\n")
        context.terminal.result(probe, lambda: context.terminal.print(f"{out}: {len(known) + 1} golden probes"))

    run(as_json, command)
