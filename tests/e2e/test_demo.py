"""`tenure demo` as a person runs it: real servers, a real model, every gate, twice on the same data folder.

The second run proves that nothing is left behind and that what is named by its content is reused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.tasks.requests import REQUEST_OF

ROOT = Path(__file__).resolve().parents[2]
DEMO_TIMEOUT_S = 240
MIB = 1_048_576
STEPS = [
    "artifact add", "artifact verify", "assess", "profile create", "probe run", "candidate", "approve", "deploy",
    "load", "invoke", "health", "drain", "unload", "audit replay",
]  # fmt: skip


def tenure(*arguments: str, data_dir: Path, timeout_s: float = DEMO_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    path = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-P", "-m", "services.cli.app", *arguments],
        env={**inherited, "PYTHONPATH": path, "TENURE_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def demo(data_dir: Path) -> dict[str, Any]:
    ran = tenure("demo", "--json", data_dir=data_dir)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def processes_of(data_dir: Path) -> list[str]:
    """Command lines of processes that know this data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(data_dir).encode() in known:
                found.append(line)
    return found


@pytest.mark.timeout(2 * DEMO_TIMEOUT_S + 60)
def test_the_demo_proves_the_whole_chain_and_again(tmp_path: Path) -> None:
    data_dir = tmp_path / "plane"
    first = demo(data_dir)
    measured = {step["step"]: step["measured"] for step in first["steps"]}

    assert first["held"]
    assert [step["step"] for step in first["steps"]] == STEPS
    assert all(step["held"] for step in first["steps"])

    assert measured["candidate"]["status"] == "lab_ready"
    assert measured["invoke"]["dimensions"] == 384
    assert measured["invoke"]["truncated"] >= 1
    assert first["cosine_min"] >= 0.9999

    offline = measured["probe run"]["offline"]
    assert offline["proven"]
    assert offline["attempts"]
    assert all(attempt["refused"] for attempt in offline["attempts"] if attempt.get("tried", True))
    assert measured["probe run"]["child_exit_code"] == 0

    assert measured["drain"]["refused_with"] in ("DRAINING", "NOT_RESIDENT")
    assert first["reclaim_complete"]
    assert first["reclaimed"]["bytes"] > 50 * MIB  # the weights alone are 87 MiB
    assert measured["unload"]["memory"]["process_after"]["bytes"] == 0

    audit = first["audit"]
    assert audit["consistent"]
    assert audit["events"] > 0
    assert audit["signatures_checked"] > 0
    assert audit["violations"] == []
    assert audit["table_differences"] == []

    assert processes_of(data_dir) == []

    second = demo(data_dir)
    again = {step["step"]: step["measured"] for step in second["steps"]}
    assert second["held"]
    for step, name in (("artifact add", "artifact_id"), ("profile create", "profile_id")):
        assert again[step][name] == measured[step][name]
    for step, name in (("probe run", "probe_id"), ("deploy", "deployment_id"), ("deploy", "name")):
        assert again[step][name] != measured[step][name]
    assert second["audit"]["events"] > audit["events"]
    assert processes_of(data_dir) == []


@pytest.mark.thorough
@pytest.mark.timeout(2 * DEMO_TIMEOUT_S + 60)
def test_every_task_goes_the_whole_way(tmp_path: Path) -> None:
    ran = tenure("demo", "--all", "--json", data_dir=tmp_path / "plane", timeout_s=2 * DEMO_TIMEOUT_S)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    document = json.loads(ran.stdout)
    assert document["held"]
    tasks = {each["task"]: {step["step"]: step["measured"] for step in each["steps"]} for each in document["tasks"]}
    assert tasks.keys() == REQUEST_OF.keys()
    for task, steps in tasks.items():
        assert [name for name in STEPS if name != "audit replay"] == [name for name in steps if name != "audit replay"]
        assert steps["probe run"]["offline"]["proven"], task
        assert steps["unload"]["memory"]["reclaim_complete"], task
        if task != "embedding":
            assert steps["probe run"]["health"]["golden"][0]["passed"], task
            assert steps["invoke"]["distance"] <= steps["invoke"]["tolerance"], task
    assert document["audit"]["consistent"]
    assert processes_of(tmp_path / "plane") == []


def test_without_servers_commands_say_so_with_exit_code_4(tmp_path: Path) -> None:
    ran = tenure("ps", "--json", data_dir=tmp_path)
    assert ran.returncode == 4
    assert json.loads(ran.stdout)["error"]["code"] == "UNAVAILABLE"
    assert "tenure up" in ran.stderr
    assert "Traceback" not in ran.stderr
