"""`tenure up`: everything on this machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.context import checked_settings
from services.cli.screen.terminal import Terminal


def up_command(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where everything is kept [TENURE_DATA_DIR].")
    ] = None,
) -> None:
    """Run servers, services and the local node's worker until Ctrl-C. Progress goes to stderr.

    A second one on the same data folder ends with exit code 3.
    """
    terminal = Terminal()
    settings = checked_settings(terminal)
    if data_dir is not None:
        settings = settings.model_copy(update={"data_dir": data_dir.absolute()})
    from services.embedded.up import up  # late: only here are the embedded servers needed

    raise typer.Exit(up(settings, terminal.err))
