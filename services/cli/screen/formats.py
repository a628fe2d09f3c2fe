"""How ids, times, sizes and durations look to a person. Programs get the raw values with `--json`."""

from __future__ import annotations

import time
from typing import Any

ID_CHARACTERS = 12
UNAVAILABLE = "unavailable"  # never 0, and never a dash, where nobody measured
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def short(ident: str | None) -> str:
    """The first 12 characters of an id, enough to give it back to any command."""
    return ident[:ID_CHARACTERS] if ident else "-"


def size(count: int | None) -> str:
    """Bytes with a binary unit; `-` where nobody said."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _SIZES:
        if abs(value) < 1_024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1_024
    raise AssertionError("unreachable")


def span(milliseconds: float | None) -> str:
    """A duration in at most two units: `840 ms`, `3.2 s`, `5m 2s`, `3h 10m`, `2d 4h`."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1_000:.1f} s"
    return _whole(int(milliseconds / 1_000))


def age(at_ms: int | None, now_ms: int | None = None) -> str:
    """How long ago a moment of the control plane's clock was. Clocks differ; it is never shown as negative."""
    if at_ms is None:
        return "-"
    now = int(time.time() * 1_000) if now_ms is None else now_ms
    return _whole(max(0, now - at_ms) // 1_000)


def _whole(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def reading(value: Any) -> str:
    """A `Reading` of evidence: its size, or why there is none."""
    if not isinstance(value, dict):
        return "-"
    if value.get("bytes") is None:
        return f"{UNAVAILABLE}: {value.get('unavailable') or 'no reason given'}"
    return size(value["bytes"])


def yes(value: object) -> str:
    return "yes" if value else "no"
