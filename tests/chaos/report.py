"""How long it took from each fault until everything served again, kept in a file over many runs.

A test calls `recovered(fault, seconds)`. Where TENURE_CHAOS_REPORT names a file, the figure is added to it; the file
grows over runs, so that a median and a worst can be told. The table for docs/reliability.md:

    python -m tests.chaos.report FILE
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


def table(known: dict[str, Any]) -> str:
    """The markdown table, with what it was measured on below."""
    lines = ["| fault | runs | median s | worst s |", "| --- | ---: | ---: | ---: |"]
    for fault, seconds in known["faults"].items():
        lines.append(f"| {fault} | {len(seconds)} | {median(seconds):.1f} | {max(seconds):.1f} |")
    settings = ", ".join(f"`{name}` {value}" for name, value in known["settings"].items())
    return "\n".join([*lines, "", f"Measured on {known['measured_at']}: {known['machine']}; {settings}."])


if __name__ == "__main__":
    sys.stdout.write(table(json.loads(Path(sys.argv[1]).read_text())) + "\n")
