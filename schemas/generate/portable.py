"""Patterns as every language reads them: without the look-ahead that only Python's `$` needs (see `schemas.tokens`)."""

from __future__ import annotations

from typing import Any

from schemas.tokens import AT_THE_END


def pattern_of(pattern: str) -> str:
    return pattern.removesuffix(AT_THE_END)


def portable(node: Any) -> Any:
    """A JSON Schema, or a part of one, with such patterns."""
    if isinstance(node, dict):
        return {
            key: pattern_of(value) if key == "pattern" and isinstance(value, str) else portable(value)
            for key, value in node.items()
        }
    return [portable(item) for item in node] if isinstance(node, list) else node
