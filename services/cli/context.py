"""Context: what a command works with, and the one place where its outcome becomes an exit code.

`run` connects, runs the command's coroutine and closes. A Refusal is printed with its code; Ctrl-C ends with
130; a closed pipe (`tenure ps | head -1`) is no error. Anything else is a defect and raises.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import typer
from pydantic import ValidationError

from schemas.codes import Refusal
from services.cli.exits import INTERRUPTED, OK, USAGE
from services.cli.screen.terminal import Terminal
from services.client import Client
from services.settings import Settings


class Context:
    """The client, the terminal and the settings of one command."""

    def __init__(self, client: Client, terminal: Terminal, settings: Settings) -> None:
        self.client = client
        self.terminal = terminal
        self.settings = settings


Command = Callable[[Context], Awaitable[int | None]]


def run(as_json: bool, command: Command) -> None:
    """Run a command that needs the control plane. Always ends in typer.Exit."""

    async def connected(terminal: Terminal, settings: Settings) -> int | None:
        async with await Client.connect(settings) as client:
            return await command(Context(client, terminal, settings))

    run_alone(as_json, connected)


def run_alone(as_json: bool, command: Callable[[Terminal, Settings], Awaitable[int | None]]) -> None:
    """Run a command that does without a connection, or makes its own. Always ends in typer.Exit."""
    raise typer.Exit(outcome(Terminal(as_json), command))


def outcome(terminal: Terminal, command: Callable[[Terminal, Settings], Awaitable[int | None]]) -> int:
    """The exit code of running this command to its end."""

    async def body() -> int | None:
        return await command(terminal, settings)

    settings = checked_settings(terminal)
    try:
        return asyncio.run(body()) or OK
    except Refusal as refusal:
        return terminal.refuse(refusal)
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes stdout once more at exit
        return OK


def checked_settings(terminal: Terminal) -> Settings:
    """The settings, or the exit with USAGE that names each variable with a wrong value."""
    try:
        return Settings()
    except ValidationError as error:
        for each in error.errors():
            terminal.say(f"TENURE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}")
        raise typer.Exit(USAGE) from error
