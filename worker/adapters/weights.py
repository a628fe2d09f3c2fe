"""Weights that a model's files lack: transformers makes them up at random and goes on, with nothing but a warning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.codes import Code, Refusal


def refuse_made_up(loading: Mapping[str, Any], unused: tuple[str, ...] = ()) -> None:
    """`loading` is the library's `output_loading_info`; what begins with one of `unused` may be missing.

    Raises Refusal.
    """
    missing = sorted(name for name in loading["missing_keys"] if not name.startswith(unused))
    if missing:
        raise Refusal(Code.LOAD_FAILED, f"the files lack {len(missing)} weights of the model, the first `{missing[0]}`")
    mismatched = sorted(str(each[0] if isinstance(each, tuple) else each) for each in loading["mismatched_keys"])
    if mismatched:
        raise Refusal(
            Code.LOAD_FAILED, f"{len(mismatched)} weights are not of the model's shape, the first `{mismatched[0]}`"
        )
