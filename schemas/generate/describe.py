"""Structs as words: the name, type, limits, default and description of each field.

A field's description is what the contract says about it, in this order: the sentences of the struct's
docstring (or of the struct it extends) that name the field in backticks, the description on the field's own
type, the description of a telling alias, the module's docstring. Where none says anything, it stays empty.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import EnumMeta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from schemas import events, evidence, live, profiles, tokens, work
from schemas.generate.portable import pattern_of

# Aliases with their own row under "Types", so that a field's type is a link and not a pattern.
ALIASES: dict[str, Any] = {
    "Token": tokens.Token,
    "Digest": tokens.Digest,
    "Generation": tokens.Generation,
    "Name": tokens.Name,
    "Text": tokens.Text,
    "Actor": tokens.Actor,
    "Milliseconds": tokens.Milliseconds,
    "DurationMs": tokens.DurationMs,
    "ByteCount": tokens.ByteCount,
    "Adapter": profiles.Adapter,
    "Task": profiles.Task,
    "WorkKind": work.WorkKind,
    "Stage": work.Stage,
    "ResidencyState": events.ResidencyState,
    "ResidentState": live.ResidentState,
    "WorkSpec": work.WorkSpec,
    "Statement": evidence.Statement,
}
TELLING_ALIASES = ("Actor", "Adapter", "Task")  # their description says what the field is, not only its form
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", bytes: "bytes", NoneType: "null", Any: "any"}


@dataclass(frozen=True)
class FieldText:
    name: str
    type: str
    limits: str
    default: str  # "required", or the default as JSON
    description: str


def slug(heading: str) -> str:
    """The anchor that GitHub and most renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def is_struct(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Struct)


def struct_name(struct: Any) -> str:
    """The class name, with the module where two structs share it."""
    name: str = struct.__name__
    if hasattr(events, name) and hasattr(evidence, name) and getattr(events, name) is not getattr(evidence, name):
        return f"{name} ({struct.__module__.rpartition('.')[2]})"
    return name


def docstring(struct: Any) -> str:
    """The struct's own docstring without line breaks inside paragraphs; empty where it has none."""
    own = struct.__dict__.get("__doc__") or ""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(own).split("\n\n")) if own else ""


def alias_of(kind: Any) -> str | None:
    return next((name for name, alias in ALIASES.items() if alias == kind), None)


def parts(kind: Any) -> Iterator[Any]:
    """The type and every type inside it, aliases opened."""
    yield kind
    for inner in get_args(kind):
        if not isinstance(inner, Meta) and get_origin(kind) is not Literal:
            yield from parts(inner)


def structs_in(kind: Any) -> list[Any]:
    """Structs reachable from a type, depth first, each once."""
    found: list[Any] = []

    def visit(inner: Any) -> None:
        for part in parts(inner):
            if is_struct(part) and part not in found:
                found.append(part)
                for one in msgspec.structs.fields(part):
                    visit(one.type)

    visit(kind)
    return found


def type_text(kind: Any) -> str:
    """A type in words, with links to the structs and aliases it names."""
    alias = alias_of(kind)
    if alias is not None:
        return f"[{alias}](#types)"
    if is_struct(kind):
        name = struct_name(kind)
        return f"[{name}](#{slug(name)})"
    if isinstance(kind, EnumMeta):
        return f"[{kind.__name__}](#codes)"
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_text(args[0])
    if origin is Literal:
        return " or ".join(f"`{_json(value)}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join(type_text(arg) for arg in args if arg is not msgspec.UnsetType)
    if origin is list:
        return f"array of {type_text(args[0])}"
    if origin is dict:
        return f"object, {type_text(args[0])} to {type_text(args[1])}"
    return PLAIN[kind]


def limits_text(kind: Any, open_alias: bool = False) -> str:
    """The bounds on a type. An alias states its own under "Types", unless it is to be opened."""
    if alias_of(kind) is not None and not open_alias:
        return ""
    if get_origin(kind) is Annotated:
        base, *metas = get_args(kind)
        unit = {str: " characters", list: " items"}.get(get_origin(base) or base, "")
        return "; ".join(text for meta in metas if (text := _bounds(meta, unit)))
    found = (limits_text(arg) for arg in get_args(kind)) if get_origin(kind) is not Literal else ()
    return "; ".join(text for text in found if text)


def fields_of(struct: Any, without: type[Struct] | None = None) -> list[FieldText]:
    """The fields on the wire, the tag first, leaving out those that `without` has."""
    skipped = {one.name for one in msgspec.structs.fields(without)} if without else set()
    rows = []
    tag = struct.__struct_config__
    if tag.tag is not None:
        rows.append(FieldText(tag.tag_field, f"`{_json(tag.tag)}`", "", "required", "Tells which struct this is."))
    for one in msgspec.structs.fields(struct):
        if one.name not in skipped:
            default = _default_text(one)
            rows.append(
                FieldText(
                    one.encode_name,
                    type_text(one.type),
                    limits_text(one.type),
                    default,
                    description(struct, one.name, one.type),
                )
            )
    return rows


def description(struct: Any, name: str, kind: Any) -> str:
    bases = [base for base in struct.__mro__ if is_struct(base) and base is not Struct]
    for base in bases:
        if said := _mentions(docstring(base), name):
            return said
    for part in parts(kind):
        alias = alias_of(part)
        if get_origin(part) is Annotated and (alias is None or alias in TELLING_ALIASES):
            own = " ".join(meta.description for meta in get_args(part)[1:] if meta.description)
            if own:
                return own
    owner = next(base for base in reversed(bases) if name in {one.name for one in msgspec.structs.fields(base)})
    return _mentions(inspect.cleandoc(sys.modules[owner.__module__].__doc__ or ""), name)


def _mentions(text: str, name: str) -> str:
    """The sentences and clauses of `text` that name the field in backticks, a trailing `*` meaning any ending."""
    prefix = name.partition("_")[0]
    wanted = re.compile(rf"`{re.escape(name)}(\[i\])?`|`{re.escape(prefix)}_\*`")
    said = " ".join(part for part in _clauses(" ".join(text.split())) if wanted.search(part))
    return said[:1].upper() + said[1:]


def _clauses(text: str) -> list[str]:
    """Sentences, and their parts between semicolons outside parentheses."""
    found: list[str] = []
    for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", text):
        clauses = re.split(r";\s+(?![^()]*\))", sentence)
        found += [clause if clause.endswith(".") else f"{clause}." for clause in clauses]
    return found


def _bounds(meta: Meta, unit: str) -> str:
    low = meta.ge if meta.ge is not None else meta.min_length
    high = meta.le if meta.le is not None else meta.max_length
    said = [f"matches `{pattern_of(meta.pattern)}`"] if meta.pattern else []
    if low is not None and high is not None:
        said.append(f"{low:,} to {high:,}{unit}")
    elif high is not None:
        said.append(f"at most {high:,}{unit}")
    elif low is not None:
        said.append(f"at least {low:,}{unit}")
    return "; ".join(said)


def _default_text(one: Any) -> str:
    if one.required:
        return "required"
    value = _default(one)
    return "left out" if value is msgspec.UNSET else f"`{_json(value)}`"


def _default(one: Any) -> Any:
    return one.default_factory() if one.default is msgspec.NODEFAULT else one.default


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
