"""The serving section alone, printed: `python -m benchmarks.serving [--quick] [--json PATH]`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from benchmarks.report import goal_lines
from benchmarks.serving.measure import FULL, QUICK, serving
from benchmarks.serving.table import goals, lines


def main() -> None:
    counts, rounds = QUICK if "--quick" in sys.argv[1:] else FULL
    served = asyncio.run(serving(counts, rounds))
    if "--json" in sys.argv[1:]:
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(served))
    print("\n".join([*lines(served), *goal_lines(goals(served))]))


if __name__ == "__main__":
    main()
