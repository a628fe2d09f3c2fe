"""Makes the small models in a process of its own: `python -m services.showcase.making FOLDER`.

For every task that can run here the first model that does it: its files, and the library's own answer to its first
request as a golden probe of its profile. Each is told on a line of its own, as JSON (`services.cli.demo.pieces.Made`).
Only here are ML libraries imported.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from schemas.tasks.golden import GoldenProbe
from services.showcase import principal_models
from worker.adapters import registry


def main(folder: Path) -> int:
    able = registry.capabilities()
    done: set[str] = set()
    for model in principal_models():
        task = model.profile.task
        if task in done or task not in able.get(model.profile.adapter, []):
            continue
        done.add(task)
        place = folder / model.name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        model.build(place)
        request = model.requests[0]
        expected = model.reference(place, model.profile, request)
        golden = GoldenProbe("library", request, expected, model.tolerance)
        profile = msgspec.structs.replace(model.profile, golden=[golden])
        told = {"name": model.name, "folder": str(place), "profile": profile}
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
