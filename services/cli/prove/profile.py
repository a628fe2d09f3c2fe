"""`tenure profile`: immutable settings under which a model runs, named by their digest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from projections.rows import ProfileRow, WorkRow
from schemas.codes import Code, Refusal
from schemas.profiles import Limits, RuntimeProfile
from services.cli import options
from services.cli.context import Context, run
from services.cli.prove.assess import DEFAULT_TASK
from services.cli.prove.golden import read_goldens
from services.cli.prove.settings import sections_of
from services.cli.screen.formats import age, short
from services.cli.screen.waiting import made
from services.client import Client

app = typer.Typer(no_args_is_help=True, help="RuntimeProfiles: immutable settings a model runs under.")


async def create(client: Client, assessment_id: str, profile: RuntimeProfile) -> ProfileRow:
    """Record the profile on the ground of a compatible assessment. The same settings are the same profile."""
    reply = await client.accepted("profile.create", assessment_id=assessment_id, profile=profile)
    return await client.appear(ProfileRow, made(reply, "profile_id"), reply.position)


def parse_profile(fields: dict[str, Any]) -> RuntimeProfile:
    try:
        return msgspec.convert(fields, RuntimeProfile)
    except msgspec.ValidationError as error:
        raise Refusal(Code.COMMAND_MALFORMED, f"the profile is not valid: {error}") from error


def pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` options as a dictionary."""
    found: dict[str, str] = {}
    for value in values or []:
        name, equals, text = value.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{value!r} is not NAME=VALUE", param_hint=option)
        found[name] = text
    return found


def limits_of(values: dict[str, str]) -> dict[str, int]:
    """The limits that were said, as whole numbers under names that exist."""
    for name, text in values.items():
        if name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise typer.BadParameter(f"{name!r} is not a limit; there are {known}", param_hint="--limit")
        if not text.isdecimal():
            raise typer.BadParameter(f"{name} takes a whole number", param_hint="--limit")
    return {name: int(text) for name, text in values.items()}


@app.command("create")
def create_command(
    assessment: Annotated[str, typer.Argument(help="Id or prefix of a compatible assessment.", metavar="ASSESSMENT")],
    file: Annotated[
        Path | None, typer.Option("--file", help="A JSON file with the whole profile.", exists=True, dir_okay=False)
    ] = None,
    task: Annotated[str, typer.Option("--task", help="The capability of the assessment.")] = DEFAULT_TASK,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda, optionally with an index: cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, float16 or bfloat16.")] = "float32",
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of the runtime.")] = 2,
    max_length: Annotated[int | None, typer.Option("--max-length", help="Tokens; the model's own by default.")] = None,
    truncate: Annotated[bool, typer.Option("--truncate/--refuse-longer", help="What to do with longer texts.")] = True,
    pooling: Annotated[str | None, typer.Option("--pooling", help="mean, cls or max; the files' own if unset.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize/--no-normalize", help="Give unit vectors.")] = True,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="NAME=TEXT put before an input.")] = None,
    attention: Annotated[str | None, typer.Option("--attention", help="eager or sdpa; the library's if unset.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="SECTION.NAME=VALUE of the task, such as audio.chunk=false.")
    ] = None,
    golden: Annotated[
        Path | None, typer.Option("--golden", help="A JSON file of golden probes.", exists=True, dir_okay=False)
    ] = None,
    limit: Annotated[list[str] | None, typer.Option("--limit", help="NAME=NUMBER, such as load_ms=300000.")] = None,
    offline_proof: Annotated[
        bool, typer.Option("--offline-proof/--no-offline-proof", help="Refuse to run where isolation is not proven.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Record a profile for what an assessment found compatible."""
    kind, _, index = device.partition(":")
    if index and not index.isdecimal():
        raise typer.BadParameter("write cpu, cuda or cuda:1", param_hint="--device")
    fields: dict[str, Any] = {
        "task": task,
        "device": kind,
        "device_index": int(index or 0),
        "dtype": dtype,
        "threads": threads,
        "max_length": max_length,
        "truncate": truncate,
        "pooling": pooling,
        "normalize": normalize,
        "prompts": pairs(prompt, "--prompt"),
        "require_offline_proof": offline_proof,
        "limits": limits_of(pairs(limit, "--limit")),
        **sections_of(task, pairs(setting, "--set")),
        **({"attention": attention} if attention is not None else {}),
    }

    async def command(context: Context) -> None:
        work = await context.client.one(WorkRow, assessment)
        if work.kind != "assess":
            raise Refusal(Code.UNKNOWN_STREAM, f"{short(work.id)} is a {work.kind}, not an assessment")
        said = profile_file(file) if file is not None else {**fields, "adapter": work.adapter}
        if golden is not None:
            said["golden"] = msgspec.to_builtins(read_goldens(golden))
        row = await create(context.client, work.id, parse_profile(said))
        context.terminal.result({"profile": row}, lambda: context.terminal.facts(profile_facts(row)))

    run(as_json, command)


def profile_file(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Refusal(Code.COMMAND_MALFORMED, f"{path} is not a JSON object: {error}") from error


def profile_facts(row: ProfileRow) -> list[tuple[str, object]]:
    shown: list[tuple[str, object]] = [("profile", row.id), ("assessment", row.assessment_id)]
    order = [*RuntimeProfile.__struct_fields__, *row.profile]
    for name, value in sorted(row.profile.items(), key=lambda item: order.index(item[0])):
        text = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
        shown.append((name.replace("_", " "), text))
    return shown


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the recorded profiles."""

    async def command(context: Context) -> None:
        rows = sorted(await context.client.rows(ProfileRow), key=lambda row: row.created_at_ms)
        cells = [
            (short(row.id), row.task, row.adapter, row.profile.get("device"), row.profile.get("dtype"),
             row.profile.get("max_length") or "model's", age(row.created_at_ms))
            for row in rows
        ]  # fmt: skip
        columns = ("ID", "TASK", "ADAPTER", "DEVICE", "DTYPE", "MAX LENGTH", "AGE")
        empty = "no profiles; create one with `tenure profile create`"
        context.terminal.result({"profiles": rows}, lambda: context.terminal.table(columns, cells, empty))

    run(as_json, command)
