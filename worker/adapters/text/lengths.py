"""How many tokens a text encoder can read, and which texts are computed together.

A model with learned positions fails on the first token past its table, and takes every other text of the batch with
it. Some families count their positions from the padding token's number on, so that their table is longer than what can
be read: 514 positions are 512 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schemas.codes import Code
from worker.model.frames import Refused

_COUNT_FROM_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})
LENGTH_MAX = 1_000_000  # tokenizers without a limit say an absurd number
GONE = Refused(Code.INVOCATION_CANCELLED, "it was cancelled or its time was up before all of it was computed")


def usable_positions(config: Mapping[str, Any]) -> int | None:
    """From `config.json`; None where the model has no table of positions that it says."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or not 0 < positions < LENGTH_MAX:
        return None
    if config.get("model_type") not in _COUNT_FROM_PADDING:
        return positions
    padding = config.get("pad_token_id", 1)
    return positions - (padding if isinstance(padding, int) else 1) - 1


def known_length(config: Mapping[str, Any], *stated: object) -> int | None:
    """The smallest of the usable positions and what is stated elsewhere; None where nothing is."""
    known = [
        value for value in (*stated, usable_positions(config)) if isinstance(value, int) and 0 < value < LENGTH_MAX
    ]
    return min(known) if known else None


def device_batches(lengths: Sequence[int], batch_max: int) -> Iterator[list[int]]:
    """The numbers of the items, `batch_max` at a time, those of like length together, the longest first."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for begin in range(0, len(order), batch_max):
        yield order[begin : begin + batch_max]
