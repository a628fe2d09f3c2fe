"""`tenure doctor`: each thing the plane needs, whether it is there, and what to do where it is not.

Checks never change anything and never raise: what cannot be looked at is `failed` with the reason, or `skipped`
where something it rests on failed already. The exit code is 4 if a server is not reachable, 1 if anything else
failed, 0 otherwise.
"""

from __future__ import annotations

from services.cli import options
from services.cli.context import run_alone
from services.cli.doctor.findings import Check
from services.cli.doctor.machine import machine_checks
from services.cli.doctor.servers import server_checks
from services.cli.exits import OK, REFUSED, UNREACHABLE
from services.cli.screen.terminal import Terminal
from services.settings import Settings

COLUMNS = ("CHECK", "STATUS", "FOUND", "WHAT TO DO")


async def diagnose(settings: Settings) -> list[Check]:
    """All checks, servers first, in the order in which one rests on the other."""
    return [*await server_checks(settings), *await machine_checks(settings)]


def verdict(checks: list[Check]) -> int:
    failed = [check for check in checks if check.status == "failed"]
    if any(check.server for check in failed):
        return UNREACHABLE
    return REFUSED if failed else OK


def doctor_command(as_json: options.Json = False) -> None:
    """Check servers, services, nodes, versions and the kernel, and say what to do about what is wrong."""

    async def command(terminal: Terminal, settings: Settings) -> int:
        checks = await diagnose(settings)
        rows = [(check.name, check.status, check.found, check.advice) for check in checks]
        code = verdict(checks)
        terminal.result({"healthy": code == OK, "checks": checks}, lambda: terminal.table(COLUMNS, rows))
        return code

    run_alone(as_json, command)
