"""What no adapter accepts in a model's folder: code, and files whose reading can run code.

    remote_code_reasons   code files; configurations that name a class of the folder, of another repository or of
                          any installed module, where the libraries would import and call it
    pickle_reasons        pickles by their suffix, and pickles under another name: by what the file begins with

Both are pure over the files that the manifest names: nothing is imported, unpickled or unpacked. Each obstacle is one
reason with RUNTIME_INCOMPATIBLE. The libraries are told `trust_remote_code=False` and `use_safetensors=True` as well;
the rules are for not having to rely on each of them in each version.

Configurations are read as the libraries read them (Python's own JSON, which takes NaN), up to JSON_BYTES_MAX; one that
can't be read is refused, because a library may read it otherwise.
"""

from __future__ import annotations

import ast
import errno
import importlib.util
import json
import os
import pickletools
import stat
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from schemas.artifacts import PICKLE_SUFFIXES
from schemas.codes import Code
from schemas.evidence import Reason
from worker.adapters.safetensors_header import MalformedHeader, read_header

JSON_BYTES_MAX = 8 * 1024 * 1024
DEPTH_MAX = 64  # of nesting in a configuration
HEAD_BYTES = 64 * 1024  # of each file, to tell what it is
NPZ_BYTES_MAX = 64 * 1024 * 1024
NPZ_MEMBERS_MAX = 1_024

CODE_SUFFIXES = frozenset({".py", ".pyc", ".pyd", ".so", ".dll", ".dylib"})
_MODULE_LISTS = frozenset({"modules.json", "model_index.json", "modular_model_index.json"})
_ASKS_FOR_CODE = frozenset({"auto_map", "auto_mapping", "custom_pipelines"})
_ACTIVATIONS = frozenset({"activation_fn", "activation_function", "sbert_ce_default_activation_function"})
_OWN_ACTIVATIONS = "torch.nn."  # what sentence_transformers itself writes

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NUMPY = b"\x93NUMPY"
_TAR_AT, _TAR = 257, b"ustar"
_PICKLE_PROTOCOLS = frozenset({2, 3, 4, 5})
_OPCODES = {opcode.code.encode("latin-1")[0]: opcode.name for opcode in pickletools.opcodes}
_CALLS = frozenset({"GLOBAL", "INST", "OBJ", "REDUCE", "BUILD"})


def remote_code_reasons(folder: Path, paths: Collection[str]) -> list[Reason]:
    """Everything in these files that is code or asks for some."""
    messages: list[str] = []
    for path in sorted(paths):
        if PurePosixPath(path).suffix.lower() in CODE_SUFFIXES:
            messages.append(f"`{path}` is code; code from the folder is never run")
        elif _is_configuration(path):
            messages += _in_configuration(folder, path)
    return [Reason(Code.RUNTIME_INCOMPATIBLE, message) for message in messages]


def pickle_reasons(folder: Path, paths: Collection[str]) -> list[Reason]:
    """Every file that is a pickle or holds one, whatever its name."""
    messages: list[str] = []
    for path in sorted(paths):
        if PurePosixPath(path).suffix.lower() in PICKLE_SUFFIXES:
            messages.append(f"`{path}` is a pickle; only safetensors are read")
        elif found := _hidden_pickle(folder / path):
            messages.append(f"`{path}` {found}; only safetensors are read")
    return [Reason(Code.RUNTIME_INCOMPATIBLE, message) for message in messages]


def _is_configuration(path: str) -> bool:
    name = PurePosixPath(path).name.lower()
    return name in _MODULE_LISTS or (name.endswith(".json") and "config" in name)


def _in_configuration(folder: Path, path: str) -> Iterator[str]:
    try:
        raw = _read(folder / path, JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        return  # that it is missing is for those to say who need it
    except OSError as error:
        yield f"`{path}` can't be read: {error.strerror}"
        return
    if len(raw) > JSON_BYTES_MAX:
        yield f"`{path}` is over {JSON_BYTES_MAX} bytes"
        return
    try:
        content = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        yield f"`{path}` is not what is expected: {error}"
        return
    for why in _asked_for(content, 0):
        yield f"`{path}` {why}"
    name = PurePosixPath(path).name.lower()
    if name == "modules.json":
        for why in _foreign_modules(content):
            yield f"`{path}` {why}"
    elif name in _MODULE_LISTS:
        for why in _foreign_components(content):
            yield f"`{path}` {why}"


def _asked_for(content: Any, depth: int) -> Iterator[str]:
    """Keys at any depth that make a library import something by name: processors and pipelines nest their parts'."""
    if depth > DEPTH_MAX:
        yield f"is nested deeper than {DEPTH_MAX}"
    elif isinstance(content, list):
        for each in content:
            yield from _asked_for(each, depth + 1)
    elif isinstance(content, dict):
        for key, value in content.items():
            if why := _what_is_asked(key, value):
                yield why
            yield from _asked_for(value, depth + 1)


def _what_is_asked(key: str, value: Any) -> str:
    if key in _ASKS_FOR_CODE:
        return f"has `{key}`: the model needs code from its folder"
    if key == "trust_remote_code" and value:
        return "says `trust_remote_code`, which is not the model's to say"
    if key in _ACTIVATIONS and isinstance(value, str) and "." in value and not value.startswith(_OWN_ACTIVATIONS):
        return f"names `{value}` as `{key}`, which is not one of {_OWN_ACTIVATIONS}*"
    if "attn_implementation" in key and any("/" in each for each in _strings(value)):
        return f"names a repository as `{key}`: code from elsewhere is never run"
    return ""


def _strings(value: Any) -> list[str]:
    values = value.values() if isinstance(value, dict) else [value]
    return [each for each in values if isinstance(each, str)]


def _foreign_modules(content: Any) -> Iterator[str]:
    """A sentence_transformers chain: a module's type is imported and called."""
    for module in content if isinstance(content, list) else []:
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not kind.startswith("sentence_transformers."):
            yield f"has module type `{kind}`, which is not sentence_transformers' own"


def _foreign_components(content: Any) -> Iterator[str]:
    """A diffusers pipeline: each component is `[library, class]`, and the library is imported."""
    if not isinstance(content, dict):
        return
    if not isinstance(content.get("_class_name"), str):
        yield "names no pipeline class of the library"
    for name, component in content.items():
        if not isinstance(component, list) or len(component) < 2 or not isinstance(component[0], str):
            continue
        library = component[0]
        if library not in {"diffusers", "transformers"} and not _is_pipeline_module(library):
            yield f"takes `{name}` from `{library}`, which is not a part of diffusers or transformers"


def _is_pipeline_module(name: str) -> bool:
    """Whether the installed diffusers has pipelines under this name; finds them without importing any."""
    spec = importlib.util.find_spec("diffusers") if name.isidentifier() else None
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / "pipelines" / name).is_dir()


def _hidden_pickle(path: Path) -> str:
    """What the file is, where that is a pickle or can hold one; empty for anything else."""
    try:
        head = _read(path, HEAD_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"can't be looked into: {error.strerror}"
    if path.suffix.lower() == ".safetensors" and _is_safetensors(path):
        return ""  # whose first bytes are a length, and can be any
    if head.startswith(_ZIP):
        return _pickles_in_zip(path) if path.suffix.lower() == ".npz" else "is a zip archive, as pickled weights are"
    if head.startswith(_NUMPY):
        return "is an array of pickled objects" if _has_objects(head) else ""
    if head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        return "is a tar archive, as pickled weights are"
    return "is a pickle by its content" if _is_pickle(head) else ""


def _is_safetensors(path: Path) -> bool:
    try:
        read_header(path)
    except (MalformedHeader, OSError):
        return False
    return True


def _is_pickle(head: bytes) -> bool:
    if len(head) > 2 and head[0] == 0x80 and head[1] in _PICKLE_PROTOCOLS:
        return head[2] in _OPCODES
    return len(head) < HEAD_BYTES and _is_old_pickle(head)


def _is_old_pickle(content: bytes) -> bool:
    """Protocols 0 and 1 begin with nothing special: one that is whole and calls something is a pickle."""
    calls = False
    try:
        for opcode, _, _ in pickletools.genops(content):
            calls = calls or opcode.name in _CALLS
            if opcode.name == "STOP":
                return calls
    except Exception:  # noqa: BLE001 - the parser raises whatever its opcodes' readers do; then it is none
        return False
    return False


def _has_objects(head: bytes) -> bool:
    """Whether an array's type is, or has a part that is, Python objects. A header that can't be read has."""
    wide = head[6:7] > b"\x01"  # the format's version: from 2 on the length takes four bytes
    begin = 12 if wide else 10
    length = int.from_bytes(head[8:begin], "little")
    try:
        declared = ast.literal_eval(head[begin : begin + length].decode("latin-1").strip())
        return any(_is_object_type(each) for each in _texts(declared["descr"], 0))
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        return True


def _texts(value: Any, depth: int) -> Iterator[str]:
    """The types in a type's description: a text, a list of fields (a name, then its type), or a type and a shape."""
    if depth > DEPTH_MAX:
        raise RecursionError
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for field in value:
            yield from _texts(field[1:] if isinstance(field, tuple) else field, depth + 1)
    elif isinstance(value, tuple):
        for part in value:
            yield from _texts(part, depth + 1)


def _is_object_type(text: str) -> bool:
    kind = text.lstrip("<>=|")
    return kind.startswith(("O", "object"))


def _pickles_in_zip(path: Path) -> str:
    if path.stat().st_size > NPZ_BYTES_MAX:
        return f"is an archive over {NPZ_BYTES_MAX} bytes, too large to be looked into"
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > NPZ_MEMBERS_MAX:
                return f"is an archive of more than {NPZ_MEMBERS_MAX} files"
            for member in members:
                with archive.open(member) as file:
                    head = file.read(HEAD_BYTES)
                if not head.startswith(_NUMPY) or _has_objects(head):
                    return f"holds `{member.filename}`, which is no plain array"
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        return f"is an archive that can't be read: {error}"
    return ""


def _read(path: Path, bytes_max: int) -> bytes:
    """The file's beginning. Not of a pipe or device, which would wait or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(bytes_max)
