"""Processes by pid and start time, PSS of them, and how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.profiles import RuntimeProfile
from worker.launch.processes import Identity, Record, identify, is_alive, sweep, system_boot_id, write_record
from worker.memory.measure import oom_kills, private_bytes, process_bytes
from worker.model.child import Exit, child_environment
from worker.settings import SettingsError, read_settings

PROFILE = RuntimeProfile(adapter="sentence_transformers", task="embedding")


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)


def test_identity_is_pid_and_start_time() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert is_alive(me)
    assert not is_alive(Identity(me.pid, me.started + 1))


def test_a_zombie_has_ended() -> None:
    process = sleeper()
    identity = identify(process.pid)
    assert identity is not None
    assert (process_bytes(identity).bytes or 0) > 0
    assert (private_bytes(identity).bytes or 0) > 0
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, not yet reaped
    assert not is_alive(identity)
    assert process_bytes(identity).bytes == 0
    assert private_bytes(identity).bytes == 0
    process.wait()


def test_what_a_copy_shares_with_its_origin_is_not_its_own() -> None:
    """As a model process and its fork server: the copy's end gives back nothing of what the two share."""
    program = "import os, sys; held = bytearray(os.urandom(2**20) * 64); pid = os.fork(); " + (
        "(print(pid, flush=True), sys.stdin.read(), os.kill(pid, 9)) if pid else __import__('signal').pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as origin:
        assert origin.stdout is not None
        copy = identify(int(origin.stdout.readline()))
        assert copy is not None
        assert (process_bytes(copy).bytes or 0) > 30 * 2**20  # half of what the two share
        assert (private_bytes(copy).bytes or 0) < 15 * 2**20


def test_sweep_leaves_children_of_a_living_worker(tmp_path: Path) -> None:
    process = sleeper()
    try:
        child, me = identify(process.pid), identify(os.getpid())
        assert child is not None
        assert me is not None
        path = write_record(tmp_path, Record(child, me, system_boot_id(), str(tmp_path / "scratch")))
        assert sweep(tmp_path) == 0
        assert path.exists()
        assert is_alive(child)
        write_record(tmp_path, Record(child, Identity(me.pid, me.started + 1), system_boot_id(), str(tmp_path / "s")))
        (tmp_path / "torn.json").write_text("{")
        assert sweep(tmp_path) == 1
        assert not is_alive(child)
        assert list(tmp_path.glob("*.json")) == []
    finally:
        process.kill()
        process.wait()


def test_exit_tells_how() -> None:
    assert "SIGKILL" in Exit(-9, False).message
    assert Exit(-9, False).code == "CHILD_DIED"
    assert Exit(-9, False, "the kernel counted 1 kills for memory meanwhile").code == "OUT_OF_MEMORY"
    assert "exit code 3" in Exit(3, False).message
    assert Exit(-11, False, pid=4_243).message == "the model process 4243 was ended by SIGSEGV"
    assert Exit(-9, False, "counted", pid=7).message == "the model process 7 was ended by SIGKILL; counted"
    assert Exit(-200, False).message == "the model process was ended by signal 200"
    kills = oom_kills()
    assert kills is None or kills >= 0


def test_child_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_NATS_PASSWORD", "secret")
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    monkeypatch.setenv("HF_TOKEN", "secret")
    environment = child_environment(tmp_path, PROFILE)
    assert "secret" not in environment.values()
    assert "LD_PRELOAD" not in environment
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["HOME"] == environment["TMPDIR"] == str(tmp_path)


def test_settings_name_what_is_wrong(tmp_path: Path) -> None:
    credential = tmp_path / "credential"
    credential.write_text("sixteen-characters\n")
    good = {
        "TENURE_NATS_URL": "nats://127.0.0.1:4222",
        "TENURE_NODE_ID": "node-1",
        "TENURE_CREDENTIAL_FILE": str(credential),
        "TENURE_ARTIFACT_ROOT": str(tmp_path),
        "TENURE_DATA_DIR": str(tmp_path),
    }
    settings = read_settings(good)
    assert settings.credential == "sixteen-characters"
    assert settings.state == tmp_path / "worker" / "node-1"
    for name, value in {
        "TENURE_NATS_URL": "",
        "TENURE_NODE_ID": "a.b",
        "TENURE_CREDENTIAL_FILE": str(tmp_path / "absent"),
        "TENURE_ARTIFACT_ROOT": str(tmp_path / "absent"),
        "TENURE_BEAT_MS": "-1",
        "TENURE_WORKER_FORK_SERVER": "maybe",
    }.items():
        with pytest.raises(SettingsError, match=name):
            read_settings({**good, name: value})
