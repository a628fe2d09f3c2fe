"""`python -m schemas.generate [--check] [--out docs/reference]`: write the reference, or say what is stale."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.generate import asyncapi, bundles, bus

DEFAULT_OUT = Path("docs/reference")


def documents() -> dict[str, str]:
    """Every reference file, by its path under the output folder."""
    made = {"bus.md": bus.document(), "asyncapi.json": bundles.as_text(asyncapi.document())}
    return made | {f"schemas/{family}.json": bundles.as_text(bundles.bundle(family)) for family in bundles.FAMILIES}


def stale(out: Path) -> list[str]:
    """The files under `out` that are missing, differ, or are no longer made."""
    made = documents()
    differs = [name for name, text in made.items() if not _holds(out / name, text)]
    left_over = [f"schemas/{path.name}" for path in (out / "schemas").glob("*.json")]
    return sorted(differs + [name for name in left_over if name not in made])


def write(out: Path) -> None:
    for name, text in documents().items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m schemas.generate", description="Make the reference documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is stale")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"output folder (default {DEFAULT_OUT})")
    chosen = parser.parse_args(argv)
    if not chosen.check:
        write(chosen.out)
        return 0
    names = stale(chosen.out)
    for name in names:
        sys.stderr.write(f"stale: {chosen.out / name}; run `python -m schemas.generate`\n")
    return 1 if names else 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
