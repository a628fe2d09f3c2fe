"""The entry point of the `tenure` command: every noun and verb, and the options that come before them."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from services.cli.demo.command import demo_command
from services.cli.doctor.command import doctor_command
from services.cli.invoke.command import invoke_command
from services.cli.look import audit, events, node, work
from services.cli.look.ps import ps_command
from services.cli.prove import artifact, candidate, golden, probe, profile
from services.cli.prove.assess import assess_command
from services.cli.serve import circuit, deployment
from services.cli.up import up_command

EPILOG = (
    "Exit codes: 0 done; 1 refused or failed, with a code; 2 wrong usage; 3 conflict or already running; "
    "4 a server is not reachable; 130 interrupted."
)

app = typer.Typer(
    name="tenure",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run local ML models with proof: what ran, who approved it, and what is loaded right now.",
)

START, PROVE, SERVE, LOOK = "Start", "Prove", "Serve", "Look"


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        known = version("tenure")
    except PackageNotFoundError:  # run from a source tree that is not installed
        known = "unknown (not installed)"
    typer.echo(f"tenure {known}")
    raise typer.Exit


@app.callback()
def root(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Where the embedded servers keep everything [TENURE_DATA_DIR].")
    ] = None,
    nats_url: Annotated[str | None, typer.Option("--nats-url", help="The bus to talk to [TENURE_NATS_URL].")] = None,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options here are the same as the variables named with them, which child processes see as well."""
    if data_dir is not None:
        os.environ["TENURE_DATA_DIR"] = str(data_dir.absolute())
    if nats_url is not None:
        os.environ["TENURE_NATS_URL"] = nats_url


app.command("up", rich_help_panel=START)(up_command)
app.command("demo", rich_help_panel=START)(demo_command)
app.command("doctor", rich_help_panel=START)(doctor_command)
app.add_typer(artifact.app, name="artifact", rich_help_panel=PROVE)
app.command("assess", rich_help_panel=PROVE)(assess_command)
app.add_typer(profile.app, name="profile", rich_help_panel=PROVE)
app.add_typer(golden.app, name="golden", rich_help_panel=PROVE)
app.add_typer(probe.app, name="probe", rich_help_panel=PROVE)
app.add_typer(candidate.app, name="candidate", rich_help_panel=PROVE)
app.command("approve", rich_help_panel=PROVE)(candidate.approve_command)
deployment.register(app, SERVE)
app.add_typer(circuit.app, name="circuit", rich_help_panel=SERVE)
app.command("invoke", rich_help_panel=SERVE)(invoke_command)
app.command("ps", rich_help_panel=LOOK)(ps_command)
app.add_typer(node.app, name="node", rich_help_panel=LOOK)
app.add_typer(work.app, name="work", rich_help_panel=LOOK)
app.add_typer(events.app, name="events", rich_help_panel=LOOK)
app.add_typer(audit.app, name="audit", rich_help_panel=LOOK)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
