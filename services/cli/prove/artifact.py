"""`tenure artifact`: register a folder of model files, have a node verify its bytes, list what is known."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from projections.rows import ArtifactRow, NodeRow, WorkRow
from schemas.artifacts import FileEntry, manifest_digest
from schemas.codes import Code, Refusal
from services.cli import options
from services.cli.context import Context, run
from services.cli.prove.folder import Folder, copy_files, hash_files, location_below, scan
from services.cli.screen.evidence import statement
from services.cli.screen.formats import age, short, size, span
from services.cli.screen.terminal import Terminal
from services.cli.screen.waiting import byte_progress, completed, ended, in_thread, made
from services.client import Client

NAME_CHARACTERS_MAX = 50  # a copy's folder is named <name>-<12 of the digest>
DIGEST_CHARACTERS = 12

app = typer.Typer(no_args_is_help=True, help="ArtifactSets: immutable sets of model files, named by their digest.")


class Prepared(Struct, frozen=True):
    """A folder that was hashed and lies below the node's artifact root."""

    name: str
    location: str
    files: list[FileEntry]
    bytes: int
    copied: bool


def usable_name(name: str | None, path: Path) -> str:
    """The given name, or one made of the folder's."""
    made_up = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip("-._")
    return name or made_up[:NAME_CHARACTERS_MAX] or "artifact"


async def prepare(
    client: Client,
    terminal: Terminal,
    path: Path,
    name: str | None,
    node_id: str,
    copy: bool,
    exclude: Sequence[str],
) -> Prepared:
    """Scan, hash and (with `copy`) copy the folder. Whatever can be refused is refused before a byte is read."""
    chosen = usable_name(name, path)
    folder = scan(path, exclude)
    node = await client.one(NodeRow, node_id)
    if node.artifact_root is None:
        raise Refusal(Code.NODE_ABSENT, f"no worker has ever run on node {node.id!r}; its artifact root is not known")
    artifact_root = node.artifact_root
    if not copy or (not exclude and _is_below(folder.root, artifact_root)):
        location = location_below(folder.root, artifact_root)
        with byte_progress(terminal, f"hashing {len(folder.files)} files, {size(folder.bytes)}", folder.bytes) as told:
            files = await in_thread(lambda on_bytes: hash_files(folder, on_bytes), told)
        return Prepared(chosen, location, files, folder.bytes, False)
    if not await asyncio.to_thread(Path(artifact_root).is_dir):
        message = f"the artifact root {artifact_root} of node {node.id!r} is not on this machine"
        raise Refusal(Code.ARTIFACT_OUTSIDE_ROOT, message, {"advice": "Copy the folder there and run this there."})
    target, files = await _copied(terminal, folder, Path(artifact_root), chosen)
    return Prepared(chosen, location_below(target.resolve(), artifact_root), files, folder.bytes, True)


async def _copied(terminal: Terminal, folder: Folder, root: Path, name: str) -> tuple[Path, list[FileEntry]]:
    def folder_name(entries: list[FileEntry]) -> str:
        return f"{name}-{manifest_digest(entries)[:DIGEST_CHARACTERS]}"

    with byte_progress(terminal, f"copying {len(folder.files)} files, {size(folder.bytes)}", folder.bytes) as told:
        return await in_thread(lambda on_bytes: copy_files(folder, root, folder_name, on_bytes), told)


def _is_below(root: Path, artifact_root: str) -> bool:
    top = Path(artifact_root).resolve()
    return root != top and root.is_relative_to(top)


async def register(client: Client, prepared: Prepared) -> tuple[ArtifactRow, int | None]:
    """Register the set; its row and the position of its registration."""
    reply = await client.accepted("artifact.register", name=prepared.name, files=prepared.files)
    artifact_id = made(reply, "artifact_id")
    if artifact_id != manifest_digest(prepared.files):
        raise Refusal(Code.INTERNAL_ERROR, f"the control plane named the set {artifact_id}, which is not its digest")
    return await client.appear(ArtifactRow, artifact_id, reply.position), reply.position


async def verify(client: Client, terminal: Terminal, artifact_id: str, node_id: str, location: str) -> WorkRow:
    """Have the node hash every file, and wait for its word."""
    reply = await client.accepted("artifact.verify", artifact_id=artifact_id, node_id=node_id, location=location)
    return completed(await ended(client, terminal, made(reply, "work_id"), "verify", reply.position))


@app.command("add")
def add_command(
    path: Annotated[Path, typer.Argument(help="The folder with the model's files.", exists=True, file_okay=False)],
    name: Annotated[str | None, typer.Option("--name", help="A name for the set; the folder's by default.")] = None,
    node: options.Node = options.LOCAL_NODE,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the folder below the node's artifact root.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Only register; do not verify on the node.")] = False,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", help="Leave out files that match.")] = None,
    as_json: options.Json = False,
) -> None:
    """Register a folder as an ArtifactSet and have the node verify it.

    Links, special files and pickled weights are refused. The folder must lie below the node's artifact root;
    with --copy it is put there.
    """
    if exclude and not copy:
        raise typer.BadParameter(
            "needs --copy: a node refuses files that are not in the manifest", param_hint="--exclude"
        )

    async def command(context: Context) -> None:
        client, terminal = context.client, context.terminal
        prepared = await prepare(client, terminal, path, name, node, copy, exclude or ())
        artifact, _ = await register(client, prepared)
        work = None if no_verify else await verify(client, terminal, artifact.id, node, prepared.location)
        facts: list[tuple[str, object]] = [
            ("artifact", artifact.id),
            ("name", artifact.name),
            ("files", artifact.files),
        ]
        facts += [("size", size(artifact.bytes)), ("location", prepared.location)]
        hint = f"no; run `tenure artifact verify {short(artifact.id)} --location {prepared.location}`"
        facts.append(("verified", f"on {node} in {span(work.result.get('duration_ms'))}" if work else hint))
        document = {
            "artifact": artifact,
            "location": prepared.location,
            "copied": prepared.copied,
            "verification": work,
        }
        terminal.result(document, lambda: terminal.facts(facts))

    run(as_json, command)


@app.command("verify")
def verify_command(
    artifact: options.Artifact,
    location: Annotated[
        str | None, typer.Option("--location", help="Where it lies below the node's artifact root, if new there.")
    ] = None,
    node: options.Node = options.LOCAL_NODE,
    as_json: options.Json = False,
) -> None:
    """Have a node hash every file of a set again."""

    async def command(context: Context) -> None:
        row = await context.client.one(ArtifactRow, artifact)
        known = location or row.verified.get(node)
        if known is None:
            message = f"{row.name!r} was never verified on {node!r}, so where it lies there is not known"
            raise Refusal(Code.ARTIFACT_NOT_VERIFIED, message, {"advice": "Say it with --location."})
        work = await verify(context.client, context.terminal, row.id, node, str(known))
        facts = [("artifact", row.id), ("node", node), *statement(work.result)]
        context.terminal.result({"verification": work}, lambda: context.terminal.facts(facts))

    run(as_json, command)


@app.command("list")
def list_command(as_json: options.Json = False) -> None:
    """List the registered sets."""

    async def command(context: Context) -> None:
        rows = sorted(await context.client.rows(ArtifactRow), key=lambda row: row.registered_at_ms)
        cells = [
            (
                short(row.id),
                row.name,
                row.files,
                size(row.bytes),
                ", ".join(sorted(row.verified)),
                age(row.registered_at_ms),
            )
            for row in rows
        ]
        columns = ("ID", "NAME", "FILES", "SIZE", "VERIFIED ON", "AGE")
        empty = "no artifacts; add one with `tenure artifact add`"
        context.terminal.result({"artifacts": rows}, lambda: context.terminal.table(columns, cells, empty))

    run(as_json, command)
