"""Check: one finding of `tenure doctor`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warning", "failed", "skipped"]


class Check(Struct, frozen=True):
    """`advice` says what to do unless it is ok. `server` marks a server that must be reachable."""

    name: str
    status: Status
    found: str
    advice: str = ""
    server: bool = False


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warning(name: str, found: str, advice: str) -> Check:
    return Check(name, "warning", found, advice)


def failed(name: str, found: str, advice: str, server: bool = False) -> Check:
    return Check(name, "failed", found, advice, server)


def skipped(name: str, because: str) -> Check:
    return Check(name, "skipped", f"needs {because}")
