"""The sandbox on this kernel: every attempt is refused with all layers, and the proof fails without them.

Each case runs in a fresh process, because layers can't be taken off.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from worker.sandbox import landlock, seccomp
from worker.sandbox.confinement import LAYERS
from worker.sandbox.decoys import Decoys
from worker.sandbox.escape import ATTEMPTS

INSIDE = """
import json, sys, msgspec
from worker.sandbox.confinement import Policy, confine
from worker.sandbox.escape import Targets, attempt_all
given = json.loads(sys.argv[1])
applied = confine(Policy(given["folder"], given["scratch"]), given["layers"])
proof = attempt_all(applied, msgspec.convert(given["targets"], Targets))
open(given["scratch"] + "/mine", "w").write("own")
print(open(given["folder"] + "/weights").read())
sys.stdout.write(msgspec.json.encode(proof).decode())
"""


def _has_landlock() -> bool:
    try:
        return landlock.abi() >= 1
    except OSError:
        return False


# Never in CI: a sandbox test that did not run must not look like one that passed.
IN_CI = os.environ.get("CI", "").lower() == "true"
needs_landlock = pytest.mark.skipif(not IN_CI and not _has_landlock(), reason="this kernel has no Landlock")


async def run_inside(tmp_path: Path, layers: list[str]) -> dict[str, object]:
    folder, scratch, state = tmp_path / "folder", tmp_path / "scratch", tmp_path / "state"
    for path in (folder, scratch, state):
        path.mkdir()
    (folder / "weights").write_text("weights can be read")
    decoys = await Decoys.open(state)
    given = {
        "folder": str(folder),
        "scratch": str(scratch),
        "layers": layers,
        "targets": {name: getattr(decoys.targets, name) for name in decoys.targets.__struct_fields__},
    }
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", INSIDE, json.dumps(given)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        await decoys.close()
    assert done.returncode == 0, done.stderr
    first, _, proof = done.stdout.partition("\n")
    assert first == "weights can be read"
    result: dict[str, object] = json.loads(proof)
    return result


def allowed(proof: dict[str, object]) -> set[str]:
    attempts = proof["attempts"]
    assert isinstance(attempts, list)
    assert [attempt["action"] for attempt in attempts] == list(ATTEMPTS)
    return {attempt["action"] for attempt in attempts if not attempt["refused"]}


@needs_landlock
async def test_all_layers_refuse_everything(tmp_path: Path) -> None:
    proof = await run_inside(tmp_path, list(LAYERS))
    assert allowed(proof) == set()
    assert proof["proven"] is True


async def test_without_layers_every_attempt_succeeds(tmp_path: Path) -> None:
    """So an attempt that fails inside was refused, and not aimed at nothing."""
    proof = await run_inside(tmp_path, [])
    assert proof["proven"] is False
    assert allowed(proof) >= {"tcp_connect", "udp_send", "unix_connect", "read_outside", "write_outside", "run_program"}
    assert len(proof["missing"]) == len(LAYERS)  # type: ignore[arg-type]


async def test_without_landlock_files_lie_open(tmp_path: Path) -> None:
    proof = await run_inside(tmp_path, [layer for layer in LAYERS if layer != "landlock"])
    assert proof["proven"] is False
    assert allowed(proof) >= {"read_outside", "write_outside", "read_system_file"}
    assert "landlock: switched off" in proof["missing"]  # type: ignore[operator]


async def test_without_seccomp_sockets_can_be_made(tmp_path: Path) -> None:
    proof = await run_inside(tmp_path, [layer for layer in LAYERS if layer not in {"seccomp", "network_namespace"}])
    assert proof["proven"] is False
    assert allowed(proof) >= {"udp_send", "unix_connect"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_jumps_stay_inside_the_program(machine: str) -> None:
    code = seccomp.program(machine)
    steps = [struct.unpack("HBBI", code[index : index + 8]) for index in range(0, len(code), 8)]
    for index, (operation, yes, no, _) in enumerate(steps):
        if operation & 0x07 == 0x05:  # a jump
            assert index + 1 + yes < len(steps)
            assert index + 1 + no < len(steps)
    refusal = len(steps) - 1
    tests = {step[3]: index for index, step in enumerate(steps) if step[0] == 0x15 and step[3] < 1_000}
    assert set(tests) == set(seccomp.REFUSED[machine].values())
    assert all(index + 1 + steps[index][1] == refusal for index in tests.values())
    assert steps[refusal - 1][3] == 0x7FFF_0000


def test_both_machines_refuse_the_same() -> None:
    assert set(seccomp.REFUSED["x86_64"]) == set(seccomp.REFUSED["aarch64"])


def test_this_machine_is_known() -> None:
    assert platform.machine() in seccomp.REFUSED
