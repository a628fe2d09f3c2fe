"""compose.yaml: what it claims about its containers, that it is valid, and that the plane it describes runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from projections.rows import NodeRow
from schemas.codes import Refusal
from services.client import Client
from services.embedded.child import Child
from services.embedded.compose_secrets import NATS_USERS, make
from services.embedded.nats import free_port, server_binary
from services.embedded.nats_conf import DEPLOYMENT, USERS, NatsSettings, render
from services.embedded.node_login import logs_in
from services.settings import Settings
from tests.containers.conftest import ROOT, run

READY_S = 120.0
SERVICES = ("postgres", "nats", "migrate", "control", "relay", "projector", "query", "enrol")
DATA_VOLUMES = {"postgres": "postgres:/var/lib/postgresql", "nats": "nats:/data"}
HARDENED = ["--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--network=none"]

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_every_container_is_hardened(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert not service.get("privileged", False)
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].partition(":")[0]) > 0
    writable = {entry.partition(":")[0] for entry in service["tmpfs"]}
    assert writable == ({"/tmp", "/var/run/postgresql"} if name == "postgres" else {"/tmp"})
    for volume in service.get("volumes", []):
        assert volume == DATA_VOLUMES.get(name) or volume.endswith(":ro")
    assert service["image"].startswith("${TENURE_")
    for secret in service.get("secrets", []):
        assert COMPOSE["secrets"][secret]["file"].startswith("${TENURE_SECRETS")
    for value in service.get("environment", {}).values():
        assert "password" not in value.lower() or value.startswith("/run/secrets/")


def test_only_nats_is_published_and_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"nats": ["${TENURE_NATS_BIND:-127.0.0.1:4222}:4222"]}


def test_the_worker_reaches_no_database_and_writes_no_artifacts() -> None:
    worker = COMPOSE["services"]["worker"]
    assert worker["networks"] == ["bus"]
    assert worker["volumes"] == ["${TENURE_ARTIFACTS:-./artifacts}:/artifacts:ro"]
    assert set(worker["secrets"]) == {"nats_node_password", "node_credential"}


def test_long_running_containers_have_a_health_check() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["restart"] == "no" or "healthcheck" in service, name


def test_nats_conf_is_what_the_program_renders() -> None:
    assert (ROOT / "services" / "nats.conf").read_text() == render(DEPLOYMENT)


def test_secrets_are_made_once_in_a_folder_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = make(folder, ["local"])
    mounted = [secret["file"].replace("${TENURE_NODE_ID:-local}", "local") for secret in COMPOSE["secrets"].values()]
    assert {Path(file).name for file in mounted} <= set(made)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert make(folder, ["local"]) == []
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o444}


def test_a_further_node_gets_secrets_of_its_own_and_the_users_file_stays_the_same_file(tmp_path: Path) -> None:
    make(tmp_path, ["local"])
    users = tmp_path / NATS_USERS
    mounted = users.stat().st_ino  # a container that runs sees this file, whatever later has its name
    before = {path.name: path.read_text() for path in tmp_path.iterdir() if path != users}
    made = make(tmp_path, ["gpu-1"])
    assert sorted(made) == ["nats_node_gpu-1_password", NATS_USERS, "node_gpu-1_credential"]
    assert users.stat().st_ino == mounted
    assert {name: (tmp_path / name).read_text() for name in before} == before
    for user in (*USERS, "node-gpu-1", "node-local"):
        assert f'user: "{user}"' in users.read_text()
    assert make(tmp_path, ["local"]) == []


async def test_nats_takes_the_users_file_and_a_further_node_on_sighup(tmp_path: Path) -> None:
    make(tmp_path, ["local"])
    port = free_port()
    conf = NatsSettings(listen=f"127.0.0.1:{port}", store_dir=str(tmp_path / "js"), include=f"./{NATS_USERS}")
    (tmp_path / "nats.conf").write_text(render(conf))
    argv = [str(server_binary()), "--config", str(tmp_path / "nats.conf")]
    server = Child("nats", argv, tmp_path / "nats.log", death_signal=signal.SIGTERM)

    def login(node_id: str) -> str:
        return f"nats://node-{node_id}:{(tmp_path / f'nats_node_{node_id}_password').read_text()}@127.0.0.1:{port}"

    server.start()
    try:
        await logs_in(login("local"))
        make(tmp_path, ["gpu1"])
        with pytest.raises(Refusal):
            await logs_in(login("gpu1"), timeout_s=0)
        server.signal(signal.SIGHUP)
        await logs_in(login("gpu1"))
        await logs_in(login("local"))
    finally:
        await server.stop()


def test_compose_accepts_the_file(compose_command: list[str], tmp_path: Path) -> None:
    make(tmp_path, ["local"])
    run([*compose_command, "-f", "compose.yaml", "config", "-q"], {"TENURE_SECRETS": str(tmp_path)})


@pytest.mark.timeout(600)
def test_the_control_image_has_our_packages_no_torch_and_no_root(control_image: str) -> None:
    code = """
import importlib.util, os, pathlib
import domain, projections, schemas, services, services.control.__main__, services.cli.app
assert importlib.util.find_spec("torch") is None
assert os.getuid() == 10001, os.getuid()
for folder in ("/", "/opt/tenure", "/etc", "/var"):
    try:
        pathlib.Path(folder, "written").write_text("")
    except OSError:
        continue
    raise SystemExit(f"{folder} can be written")
pathlib.Path("/tmp/written").write_text("")
assert [line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1].strip("0") == ""
assert [line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")][0].split()[1] == "1"
print("as it should be")
"""
    assert run(["docker", "run", "--rm", *HARDENED, control_image, "python", "-c", code]) == "as it should be\n"


@pytest.fixture
def deployment(
    compose_command: list[str],
    postgres_image: str,
    nats_deployed_image: str,
    control_image: str,
    tmp_path: Path,
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """compose.yaml brought up without the worker, on our images: the command and its environment."""
    (tmp_path / "secrets").mkdir(mode=0o700)
    make(tmp_path / "secrets", ["local"])
    env = {
        "TENURE_POSTGRES_IMAGE": postgres_image,
        "TENURE_NATS_BUILT_IMAGE": nats_deployed_image,
        "TENURE_CONTROL_IMAGE": control_image,
        "TENURE_SECRETS": str(tmp_path / "secrets"),
        "TENURE_ARTIFACTS": str(tmp_path),
        "TENURE_NATS_BIND": f"127.0.0.1:{free_port()}",
    }
    command = [*compose_command, "-f", "compose.yaml", "-p", f"tenure-test-{os.getpid()}"]
    try:
        run([*command, "up", "-d", "--no-build", *SERVICES], env)
        yield command, env
    finally:
        logs = subprocess.run([*command, "logs", "--tail=20"], cwd=ROOT, env={**os.environ, **env}, capture_output=True)
        print(logs.stdout.decode(errors="replace"))
        run([*command, "down", "-v"], env)


def operator_settings(env: dict[str, str]) -> Settings:
    """What a person's command line would be told."""
    return Settings(
        nats_url=f"nats://{env['TENURE_NATS_BIND']}",
        nats_user="operator",
        nats_password=Path(env["TENURE_SECRETS"], "nats_operator_password").read_text(),
    )


async def nodes(settings: Settings) -> list[str]:
    """Ask the query service from outside, as the operator, until it answers."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            client = await Client.connect(settings)
            try:
                if rows := await client.rows(NodeRow):
                    return sorted(row.id for row in rows)
            finally:
                await client.close()
        except Refusal:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, "no node appeared"
        await asyncio.sleep(0.2)


@pytest.mark.timeout(900)
def test_the_deployment_runs_and_outlives_its_servers(deployment: tuple[list[str], dict[str, str]]) -> None:
    command, env = deployment
    settings = operator_settings(env)
    assert asyncio.run(nodes(settings)) == ["local"]
    for name in ("postgres", "nats", "control"):
        run([*command, "kill", name], env)
        run([*command, "up", "-d", "--no-build", *SERVICES], env)
        assert asyncio.run(nodes(settings)) == ["local"]
    a_further_node(command, env)
    assert asyncio.run(nodes(settings)) == ["gpu1", "local"]


def a_further_node(command: list[str], env: dict[str, str]) -> None:
    """As docs/guide/deployment.md says: its secrets, nats-server told, the control plane told. Nothing is restarted."""
    secrets = Path(env["TENURE_SECRETS"])

    def login(node_id: str) -> str:
        return (
            f"nats://node-{node_id}:{(secrets / f'nats_node_{node_id}_password').read_text()}@{env['TENURE_NATS_BIND']}"
        )

    asyncio.run(logs_in(login("local")))
    make(secrets, ["gpu1"])
    run([*command, "kill", "-s", "HUP", "nats"], env)
    asyncio.run(logs_in(login("gpu1")))
    run([*command, "run", "--rm", "-T", "enrol"], {**env, "TENURE_NODE_ID": "gpu1"})
