"""`tenure invoke`: ask a deployment for what it does, straight at the worker that holds it."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from projections.rows import DeploymentRow
from schemas.codes import Code, Refusal
from schemas.serving import Answer
from schemas.tasks.requests import Request
from schemas.tasks.text import GenerateRequest, TextChunk
from services.cli import options
from services.cli.context import Context, run
from services.cli.invoke import embedding
from services.cli.invoke.asking import Said, request_in, request_of
from services.cli.invoke.files import check_out, files_made, save
from services.cli.invoke.showing import show
from services.cli.screen.formats import short, span
from services.cli.screen.plain import plain

TEXT, SOUND, IMAGES = "Text", "Sound", "Images"


def invoke_command(
    deployment: options.Deployment,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, documents or a prompt.", metavar="[TEXT]...")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file with one text or JSON a line; - is stdin.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--request", help="A JSON file with the whole request.", exists=True, dir_okay=False),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The name of one of the profile's prompts.", rich_help_panel=TEXT)
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="What documents are ranked by.", rich_help_panel=TEXT)
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message: makes it a chat.", rich_help_panel=TEXT)
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option("--new-tokens", help="At most so many.", rich_help_panel=TEXT)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=TEXT)
    ] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Nucleus sampling.", rich_help_panel=TEXT)] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text.", rich_help_panel=TEXT)
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option("--audio", help="A WAV, FLAC or Ogg file.", exists=True, dir_okay=False, rich_help_panel=SOUND),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", help="Its sampling rate in Hz; a WAV file says it.", rich_help_panel=SOUND)
    ] = None,
    channels: Annotated[int | None, typer.Option("--channels", help="Its channels.", rich_help_panel=SOUND)] = None,
    language: Annotated[str | None, typer.Option("--language", help="What is spoken.", rich_help_panel=SOUND)] = None,
    translate: Annotated[bool, typer.Option("--translate", help="Into English.", rich_help_panel=SOUND)] = False,
    speaker: Annotated[int | None, typer.Option("--speaker", help="Whose voice.", rich_help_panel=SOUND)] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(
            "--image", help="An image file; again for more.", exists=True, dir_okay=False, rich_help_panel=IMAGES
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="A label to try; again for more.", rich_help_panel=IMAGES)
    ] = None,
    negative: Annotated[
        str | None, typer.Option("--negative", help="What should not be seen.", rich_help_panel=IMAGES)
    ] = None,
    width: Annotated[int | None, typer.Option("--width", help="Pixels.", rich_help_panel=IMAGES)] = None,
    height: Annotated[int | None, typer.Option("--height", help="Pixels.", rich_help_panel=IMAGES)] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Denoising steps.", rich_help_panel=IMAGES)] = None,
    guidance: Annotated[
        float | None, typer.Option("--guidance", help="How closely to follow the prompt.", rich_help_panel=IMAGES)
    ] = None,
    count: Annotated[int | None, typer.Option("--count", help="How many images.", rich_help_panel=IMAGES)] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Where random numbers start.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write sound or images.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what --out names.")] = False,
    node: options.NodeMaybe = None,
    deadline_ms: Annotated[int | None, typer.Option("--deadline-ms", help="Give up after this long.")] = None,
    as_json: options.Json = False,
) -> None:
    """Ask a deployment for what it does. People see a summary; --json gives the whole answer."""
    if texts and file is not None:
        raise typer.BadParameter("give texts or a file, not both", param_hint="--file")

    async def command(context: Context) -> None:
        row = await context.client.one(DeploymentRow, deployment)
        if row.capability == "embedding" and request is None:
            check_out(0, out, force, as_json)
            wanted = embedding.read_texts(file, texts or [])
            answer = await embedding.embed(context.client, row, wanted, prompt, node, deadline_ms)
            embedding.show(context.terminal, row, answer)
            return
        if prompt is not None:
            raise typer.BadParameter(f"a deployment for {row.capability} has no use for it", param_hint="--prompt")
        said = Said(
            texts=texts or (embedding.read_texts(file, []) if file is not None else ()), query=query,
            images=image or (), labels=label or (), audio=audio, rate_hz=rate, channels=channels, language=language,
            translate=translate, system=system, new_tokens=new_tokens, temperature=temperature, top_p=top_p,
            stop=stop or (), speaker=speaker, negative=negative, width=width, height=height, steps=steps,
            guidance=guidance, count=count, seed=seed, deadline_ms=deadline_ms,
        )  # fmt: skip
        asked = request_in(request, row.capability) if request is not None else request_of(row.capability, said)
        if deadline_ms is not None:
            asked = msgspec.structs.replace(asked, deadline_ms=deadline_ms)
        check_out(files_made(asked), out, force, as_json)
        await _ask(context, row, said, asked, node, out, force)

    run(as_json, command)


async def _ask(
    context: Context, row: DeploymentRow, said: Said, asked: Request, node: str | None, out: Path | None, force: bool
) -> None:
    terminal, began = context.terminal, time.perf_counter()
    streamed = isinstance(asked, GenerateRequest) and not terminal.as_json and sys.stdout.isatty()
    if streamed:
        answer = await _streamed(context, row, msgspec.structs.replace(asked, stream=True), node)
    else:
        answer = await context.client.invoke(row, asked, node)
    latency_ms = (time.perf_counter() - began) * 1_000
    if terminal.as_json:
        terminal.document(answer)
    else:
        saved = save(answer.result, out, force)
        if not streamed:
            show(terminal, said, asked, answer.result, saved)
    terminal.say(
        f"from {row.name} (artifact {short(answer.artifact_id)}, profile {short(answer.profile_id)}, generation "
        f"{answer.generation}) in {span(latency_ms)}, computing {span(answer.compute_ms)}"
    )


async def _streamed(context: Context, row: DeploymentRow, asked: Request, node: str | None) -> Answer:
    """Text as it comes; Ctrl-C ends the invocation at the worker as well."""
    async with contextlib.aclosing(context.client.stream(row, asked, node)) as pieces:
        async for piece in pieces:
            if isinstance(piece, TextChunk):
                sys.stdout.write(plain(piece.text))
                sys.stdout.flush()
            else:
                sys.stdout.write("\n")
                return piece
    raise Refusal(Code.INTERNAL_ERROR, "the stream ended without an answer")
