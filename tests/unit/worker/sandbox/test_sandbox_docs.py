"""The guide's tables are what the code says."""

from __future__ import annotations

from pathlib import Path

from worker.sandbox.attempts import TRIALS
from worker.sandbox.confinement import FILE_BYTES_MAX, LAYERS, OPEN_FILES_MAX

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "guide" / "sandbox.md"


def table() -> str:
    """Attempt by attempt: who refuses it alone, and whether a proof needs it."""
    rows = ["| attempt | refused by | needed |", "| --- | --- | --- |"]
    for trial in TRIALS:
        enough = " or ".join(
            " with ".join(f"`{layer}`" for layer in LAYERS if layer in each) for each in trial.stopped_by
        )
        rows.append(f"| `{trial.action}` | {enough} | {'yes' if trial.needed else ''} |")
    return "\n".join(rows)


def test_the_table_of_attempts() -> None:
    assert table() in GUIDE.read_text()


def test_every_layer_is_explained() -> None:
    text = GUIDE.read_text()
    assert [layer for layer in LAYERS if f"\n| `{layer}` |" not in text] == []


def test_the_limits() -> None:
    text = GUIDE.read_text()
    assert f"{OPEN_FILES_MAX:,} open files" in text
    assert f"{FILE_BYTES_MAX >> 30} GiB" in text
