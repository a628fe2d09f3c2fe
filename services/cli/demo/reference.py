"""The reference for `tenure demo`: the same texts through sentence-transformers itself, in a process of its own.

`vectors_of` starts `python -m services.cli.demo.reference FOLDER`, which reads a JSON list of texts on stdin and
writes their vectors to stdout. Only that child imports an ML runtime; it is told to stay offline and ends at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from schemas.codes import Code, Refusal

TIMEOUT_S = 180.0
STDERR_CHARACTERS = 500
SOURCE = Path(__file__).resolve().parents[3]  # where the packages lie, installed or not


async def vectors_of(folder: Path, texts: Sequence[str]) -> list[list[float]]:
    """What sentence-transformers answers for these texts with the files in this folder."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "services.cli.demo.reference", str(folder),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **offline, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(child.communicate(json.dumps(list(texts)).encode()), TIMEOUT_S)
    except TimeoutError:
        raise Refusal(Code.DEADLINE_EXCEEDED, f"the reference took longer than {TIMEOUT_S:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        last = err.decode(errors="replace").strip()[-STDERR_CHARACTERS:]
        advice = {"advice": "Install `tenure[worker]` in this environment, too."}
        raise Refusal(Code.LOAD_FAILED, f"the reference ended with {child.returncode}: {last}", advice)
    found: list[list[float]] = json.loads(out)
    return found


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """The cosine of the angle between two vectors; 0 where one has no length, so that it never passes for equal."""
    if len(left) != len(right):
        return 0.0
    length = math.sqrt(math.fsum(x * x for x in left)) * math.sqrt(math.fsum(y * y for y in right))
    return math.fsum(x * y for x, y in zip(left, right, strict=True)) / length if length else 0.0


def main() -> int:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True)
    vectors = model.encode(json.load(sys.stdin), convert_to_numpy=True, show_progress_bar=False)
    sys.stdout.write(json.dumps(vectors.tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
