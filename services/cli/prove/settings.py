"""The settings of a profile that belong to its task: written out whole, so that the digest binds what is meant.

A profile without a section leaves the section's values to the adapter's release. The command line never does that: for
each task it writes the section with its values, those said with `--set SECTION.NAME=VALUE` in the place of the
defaults. A section that the task has no use for is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from schemas.profiles import AudioSettings, DiffusionSettings, GenerationSettings, ImageSettings

SECTIONS: dict[str, type[Any]] = {
    "image": ImageSettings,
    "audio": AudioSettings,
    "generation": GenerationSettings,
    "diffusion": DiffusionSettings,
}
SECTION_OF: dict[str, str] = {
    "ocr": "image",
    "image_embedding": "image",
    "zero_shot_image": "image",
    "stt": "audio",
    "text_generation": "generation",
    "image_generation": "diffusion",
}


def sections_of(task: str, said: dict[str, str]) -> dict[str, Any]:
    """The task's section as fields of a profile; `said` maps `section.name` to a value in JSON or plain words."""
    own = SECTION_OF.get(task)
    fields: dict[str, dict[str, Any]] = {own: msgspec.to_builtins(SECTIONS[own]())} if own else {}
    for path, text in said.items():
        section, dot, name = path.partition(".")
        if not dot or section not in SECTIONS or name not in SECTIONS[section].__struct_fields__:
            known = ", ".join(f"{own}.{each}" for each in SECTIONS[own].__struct_fields__) if own else "none"
            raise typer.BadParameter(f"{path!r} is not a setting; for {task} there are: {known}", param_hint="--set")
        if section != own:
            raise typer.BadParameter(f"a profile for {task} has no use for {section!r}", param_hint="--set")
        fields[section][name] = _value(text)
    return dict(fields)


def _value(text: str) -> Any:
    """A number or a truth value as JSON writes it, anything else as the word it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
