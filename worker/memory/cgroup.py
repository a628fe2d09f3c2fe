"""The memory limit that the kernel holds this worker and its model processes to, and what counts against it now.

A process is in one memory cgroup, of version 2 or of version 1. Its limit is the smallest one on the way up to the
root of what can be seen here: a container's own limit, and those of the groups around it as far as they are mounted.
`current` is what the kernel counts in the group itself: page cache as well, so it is more than the sum of PSS.
No limit is not a limit of 0: it is unavailable, with that reason.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

from schemas.evidence import Reading

LEVELS_MAX = 64
NO_LIMIT = "no limit: none of this process's cgroups has one"
NO_GROUP = "this process's memory cgroup cannot be read here"
# Version 1 has no word for "no limit": it says the largest number of whole pages.
V1_UNLIMITED_FROM = 2**62


class Group(Struct, frozen=True):
    """The directories of this process's memory cgroup, its own first, then its parents up to the mount."""

    version: int
    folders: list[Path]


class HostMemory(Struct, frozen=True):
    """What the kernel says of the memory cgroup at one moment."""

    limit: Reading
    current: Reading


def read_host_memory(proc: Path = Path("/proc")) -> HostMemory:
    """Limit and current use of this process's memory cgroup."""
    group = memory_group(proc)
    if group is None:
        nothing = Reading(unavailable=NO_GROUP)
        return HostMemory(nothing, nothing)
    limit_file, current_file = (
        ("memory.max", "memory.current") if group.version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limits = [limit for folder in group.folders if (limit := _number(folder / limit_file)) is not None]
    real = [limit for limit in limits if group.version == 2 or limit < V1_UNLIMITED_FROM]
    current = _number(group.folders[0] / current_file)
    return HostMemory(
        Reading(bytes=min(real)) if real else Reading(unavailable=NO_LIMIT),
        Reading(bytes=current) if current is not None else Reading(unavailable=f"{current_file} cannot be read"),
    )


def memory_group(proc: Path = Path("/proc")) -> Group | None:
    """The cgroup that accounts for this process's memory. Where both versions are mounted, it is in version 1's."""
    paths = _paths(proc)
    for version in (1, 2):
        mount = _mount(proc, version)
        path = paths.get(version)
        if mount is None or path is None:
            continue
        root, point = mount
        below = path[len(root) :] if root != "/" and path.startswith(root) else path
        own = point / below.strip("/")
        if not own.is_dir():
            own = point  # in a container whose cgroup namespace is the host's, the mount itself is the group
        folders = [own]
        while folders[-1] != point and len(folders) < LEVELS_MAX:
            folders.append(folders[-1].parent)
        return Group(version, folders)
    return None


def _paths(proc: Path) -> dict[int, str]:
    """By version, the path of the group that this process is in: `4:memory:/a/b` or `0::/a/b`."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                found[2] = path
            elif "memory" in controllers.split(","):
                found[1] = path
    return found


def _mount(proc: Path, version: int) -> tuple[str, Path] | None:
    """Which group is at the root of the mount, and where it is mounted. See proc(5), mountinfo."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if version == 2 and kind[0] == "cgroup2":
                return fields[3], Path(fields[4])
            if version == 1 and kind[0] == "cgroup" and "memory" in kind[2].split(","):
                return fields[3], Path(fields[4])
    return None


def _number(path: Path) -> int | None:
    """The number in the file; None for `max`, for no such file and for one that may not be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
