"""The files that sound and images are written to.

* Whether each of them can be written is checked before anything is asked: what can't be is computed for nobody.
* A file gets the name that was asked; one that exists is replaced only with `--force`. Several images get numbers
  before the suffix.
* One that cannot be written all the same (a full disk, a name that was taken meanwhile) hinders none of the others, and
  the refusal says which are there. No half of a new file is left.
"""

from __future__ import annotations

import array
import io
import os
import sys
import wave
from collections.abc import Sequence
from pathlib import Path

import typer

from schemas.codes import Code, Refusal
from schemas.tasks.audio import Audio, SpeakRequest, Spoken
from schemas.tasks.image import Imagined, ImagineRequest
from schemas.tasks.requests import Request, Result

PCM_MAX = 32_767


def files_made(request: Request) -> int:
    """How many files the result of a request is."""
    match request:
        case SpeakRequest():
            return 1
        case ImagineRequest():
            return request.count
        case _:
            return 0


def check_out(files: int, out: Path | None, force: bool, as_json: bool) -> None:
    """Before anything is asked: whether so many files can be written. Raises Refusal and typer.BadParameter."""
    if out is not None and as_json:
        raise typer.BadParameter("--json gives the bytes themselves; leave one of both out", param_hint="--out")
    if out is not None and files == 0:
        raise typer.BadParameter("the result of this deployment is no file", param_hint="--out")
    if files == 0 or as_json:
        return
    for path in _names(_said(out), files):
        if path.is_dir():
            raise Refusal(Code.INPUT_INVALID, f"{path} is a folder; name a file")
        if os.path.lexists(path) and not force:
            raise Refusal(Code.NAME_TAKEN, f"{path} exists; use another name or --force")
        check_place(path)


def check_place(path: Path) -> None:
    """Whether a file of this name could be written. Raises Refusal."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise Refusal(Code.INPUT_INVALID, f"there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise Refusal(Code.INPUT_INVALID, f"{path} may not be written by this user")


def save(result: Result, out: Path | None, force: bool) -> list[Path]:
    """Write the sound or images of a result; where there are some, `out` is needed. Raises Refusal."""
    if not isinstance(result, Spoken | Imagined):
        return []
    contents = [wave_of(result.audio)] if isinstance(result, Spoken) else result.images
    written: list[Path] = []
    failed: list[tuple[Path, OSError]] = []
    for path, content in zip(_names(_said(out), len(contents)), contents, strict=True):
        try:
            _write(path, content, force)
        except OSError as error:
            failed.append((path, error))
        else:
            written.append(path)
    if failed:
        raise _not_written(failed, written, result.seed)
    return written


def _said(out: Path | None) -> Path:
    if out is None:
        raise Refusal(Code.INPUT_INVALID, "the result is a file; say where with --out, or use --json")
    return out


def _names(out: Path, files: int) -> list[Path]:
    if files == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, files + 1)]


def _write(path: Path, content: bytes, force: bool) -> None:
    with path.open("wb" if force else "xb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            if not force:
                path.unlink()
            raise


def _not_written(failed: Sequence[tuple[Path, OSError]], written: Sequence[Path], seed: int) -> Refusal:
    taken = all(isinstance(error, FileExistsError) for _, error in failed)
    reasons = "; ".join(f"{path}: {error.strerror or error}" for path, error in failed)
    there = ", ".join(map(str, written)) or "nothing"
    return Refusal(
        Code.NAME_TAKEN if taken else Code.INPUT_INVALID,
        f"not written: {reasons}; written: {there}",
        {"advice": f"Name another place with --out; the same request with --seed {seed} gives the same again."},
    )


def wave_of(audio: Audio) -> bytes:
    """A WAV file of 16-bit PCM, which every player knows; what is beyond full scale is held at it."""
    samples = array.array("f")
    samples.frombytes(audio.data)
    if sys.byteorder == "big":
        samples.byteswap()
    numbers = array.array("h", (int(max(-1.0, min(1.0, value)) * PCM_MAX) for value in samples))
    if sys.byteorder == "big":
        numbers.byteswap()
    whole = io.BytesIO()
    with wave.open(whole, "wb") as file:
        file.setnchannels(audio.channels)
        file.setsampwidth(2)
        file.setframerate(audio.rate_hz)
        file.writeframes(numbers.tobytes())
    return whole.getvalue()
