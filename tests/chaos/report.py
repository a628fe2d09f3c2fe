"""How long it took from each fault until everything served again, kept in a file over many runs.

A test calls `recovered(fault, seconds)`. Where TENURE_CHAOS_REPORT names a file, the figure is added to it; the file
grows over runs, so that a median and a worst can be told. The tables for docs/reliability.md:

    python -m tests.chaos.report FILE

A fault that is called `<process>: kill -9` or `<process>, <moment>: kill -9` goes into the table of processes and
moments, with the median and the worst in its cell; every other one is a row of the second table.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

VARIABLE = "TENURE_CHAOS_REPORT"
PROCESSES = ("model process", "worker", "control", "relay", "projector", "query", "nats", "postgres")
# as a fault's name has it, and as the table's head has it
MOMENTS = {
    "": "commands",
    "a load under way": "load",
    "an invocation under way": "invoke",
    "an unload under way": "unload",
    "a claim on its way": "claim on its way",
    "a claim being decided": "claim being decided",
    "a claim's answer lost": "claim's answer lost",
}


def recovered(fault: str, seconds: float, settings: dict[str, int]) -> None:
    """Add one figure. `settings` are the terms it was measured under."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    path = Path(name)
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"faults": {}}
    known["faults"].setdefault(fault, []).append(round(seconds, 3))
    known["settings"] = settings
    known["machine"] = machine()
    known["measured_at"] = datetime.now(UTC).date().isoformat()
    fresh = path.with_suffix(".partial")
    fresh.write_text(json.dumps(known, indent=1))
    fresh.replace(path)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} cores of {model}, {platform.system()}, Python {platform.python_version()}"


def tables(known: dict[str, Any]) -> str:
    """Both markdown tables, with what they were measured on below."""
    faults: dict[str, list[float]] = known["faults"]
    names = {_named(process, moment) for process in PROCESSES for moment in MOMENTS}
    settings = ", ".join(f"`{name}` {value}" for name, value in known["settings"].items())
    said = f"Measured on {known['measured_at']}: {known['machine']}; {settings}."
    others = {fault: seconds for fault, seconds in faults.items() if fault not in names}
    return "\n".join([*_killed(faults), "", *_others(others), "", said])


def _named(process: str, moment: str) -> str:
    return f"{process}, {moment}: kill -9" if moment else f"{process}: kill -9"


def _killed(faults: dict[str, list[float]]) -> list[str]:
    lines = [f"| kill -9 of | {' | '.join(MOMENTS.values())} |", f"| --- |{' ---: |' * len(MOMENTS)}"]
    for process in PROCESSES:
        found = [faults.get(_named(process, moment)) for moment in MOMENTS]
        cells = [f"{median(seconds):.1f} / {max(seconds):.1f} ({len(seconds)})" if seconds else "" for seconds in found]
        lines.append(f"| {process} | {' | '.join(cells)} |")
    return lines


def _others(faults: dict[str, list[float]]) -> list[str]:
    lines = ["| fault | runs | median s | worst s |", "| --- | ---: | ---: | ---: |"]
    for fault, seconds in faults.items():
        lines.append(f"| {fault} | {len(seconds)} | {median(seconds):.1f} | {max(seconds):.1f} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write(tables(json.loads(Path(sys.argv[1]).read_text())) + "\n")
