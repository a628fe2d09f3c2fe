"""The kernel's limit on this worker: cgroup files as proc(5) and cgroups(7) describe them, and the real ones here."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.memory.cgroup import LEVELS_MAX, NO_GROUP, NO_LIMIT, memory_group, read_host_memory

GIB = 1024**3
V1_NONE = "9223372036854771712"


class Tree:
    """A /proc and the cgroup mounts it tells of."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mounts = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.mounts.mkdir()
        self.says(cgroup="", mountinfo="")

    def says(self, cgroup: str, mountinfo: str) -> None:
        (self.proc / "self" / "cgroup").write_text(cgroup)
        (self.proc / "self" / "mountinfo").write_text(mountinfo)

    def two(self, path: str, root: str = "/") -> None:
        mount = f"30 23 0:26 {root} {self.mounts} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        self.says(f"0::{path}\n", "23 28 0:22 / /proc rw - proc proc rw\n" + mount)

    def one(self, path: str, root: str = "/") -> None:
        mount = f"35 31 0:32 {root} {self.mounts} rw - cgroup cgroup rw,memory\n"
        other = "36 31 0:33 / /elsewhere rw - cgroup cgroup rw,cpu\n"
        self.says(f"9:name=systemd:/\n4:memory:{path}\n1:cpu:/\n", other + mount)

    def group(self, path: str, **files: str) -> None:
        folder = self.mounts / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_version_2_the_smallest_limit_on_the_way_up_counts(tree: Tree) -> None:
    tree.two("/tenure.slice/worker.service")
    tree.group("/tenure.slice", memory__max=str(8 * GIB))
    tree.group("/tenure.slice/worker.service", memory__max=str(16 * GIB), memory__current=str(3 * GIB))
    found = read_host_memory(tree.proc)
    assert (found.limit.bytes, found.current.bytes) == (8 * GIB, 3 * GIB)


def test_max_is_no_limit_and_not_a_number(tree: Tree) -> None:
    tree.two("/worker.service")
    tree.group("/worker.service", memory__max="max", memory__current="4096")
    found = read_host_memory(tree.proc)
    assert (found.limit.bytes, found.limit.unavailable, found.current.bytes) == (None, NO_LIMIT, 4_096)


def test_the_root_group_has_no_files_of_its_own(tree: Tree) -> None:
    tree.two("/")
    found = read_host_memory(tree.proc)
    assert (found.limit.unavailable, found.current.bytes) == (NO_LIMIT, None)
    assert found.current.unavailable == "memory.current cannot be read"


def test_version_1_the_largest_whole_number_of_pages_is_no_limit(tree: Tree) -> None:
    tree.one("/docker/abc")
    tree.group("/", memory__limit_in_bytes=V1_NONE, memory__usage_in_bytes="1")
    tree.group("/docker/abc", memory__limit_in_bytes=V1_NONE, memory__usage_in_bytes="8192")
    found = read_host_memory(tree.proc)
    assert (found.limit.unavailable, found.current.bytes) == (NO_LIMIT, 8_192)
    tree.group("/docker/abc", memory__limit_in_bytes=str(2 * GIB))
    assert read_host_memory(tree.proc).limit.bytes == 2 * GIB


@pytest.mark.parametrize("root", ["/docker/abc", "/"])
def test_in_a_container_the_mount_itself_is_the_group(tree: Tree, root: str) -> None:
    """The path is the host's; the mount shows the container's own group, with or without saying so."""
    tree.one("/docker/abc", root)
    tree.group("/", memory__limit_in_bytes=str(GIB), memory__usage_in_bytes="4096")
    found = read_host_memory(tree.proc)
    assert (found.limit.bytes, found.current.bytes) == (GIB, 4_096)


def test_where_both_versions_are_mounted_memory_is_in_the_first(tree: Tree) -> None:
    tree.one("/a")
    mountinfo = (tree.proc / "self" / "mountinfo").read_text()
    tree.says("4:memory:/a\n0::/\n", f"41 31 0:38 / /unified rw - cgroup2 cgroup2 rw\n{mountinfo}")
    tree.group("/a", memory__limit_in_bytes=str(GIB), memory__usage_in_bytes="4096")
    assert read_host_memory(tree.proc).limit.bytes == GIB


def test_without_any_there_is_a_reason(tree: Tree) -> None:
    found = read_host_memory(tree.proc)
    assert found.limit.unavailable == found.current.unavailable == NO_GROUP
    assert read_host_memory(tree.proc / "absent").limit.unavailable == NO_GROUP
    tree.says("broken\n::\n", "broken - \n")
    assert read_host_memory(tree.proc).limit.unavailable == NO_GROUP


def test_the_way_up_is_bounded(tree: Tree) -> None:
    tree.two("/" + "/".join(["a"] * (LEVELS_MAX * 2)))
    tree.group("/".join(["a"] * (LEVELS_MAX * 2)))
    group = memory_group(tree.proc)
    assert group is not None
    assert len(group.folders) == LEVELS_MAX


def test_here_each_is_a_number_or_has_a_reason() -> None:
    found = read_host_memory()
    for reading in (found.limit, found.current):
        assert (reading.bytes is None) is bool(reading.unavailable)
