"""Images for the container tests, and a way to run commands against the engine.

TENURE_TEST_POSTGRES_IMAGE, TENURE_TEST_NATS_IMAGE and TENURE_TEST_BASE_IMAGE name the images (`.ci/images/build.sh`
makes stand-ins). What is missing skips a test on a developer's machine and fails it where CI=true: there, a test that
did not run must not look like one that passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND_TIMEOUT_S = 600

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")  # its image cannot be pulled everywhere


def unavailable(reason: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def run(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Run to the end; its output. Fails with that output where the command failed."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def image_of(variable: str) -> str:
    image = os.environ.get(variable)
    if not image:
        unavailable(f"{variable} is not set")
    if shutil.which("docker") is None:
        unavailable("docker is not installed")
    found = subprocess.run(["docker", "image", "inspect", str(image)], capture_output=True, text=True)
    if found.returncode != 0:
        unavailable(f"{variable}: {found.stderr.strip()}")
    return str(image)


@pytest.fixture(scope="session")
def postgres_image() -> str:
    return image_of("TENURE_TEST_POSTGRES_IMAGE")


@pytest.fixture(scope="session")
def nats_image() -> str:
    return image_of("TENURE_TEST_NATS_IMAGE")


@pytest.fixture(scope="session")
def base_image() -> str:
    return image_of("TENURE_TEST_BASE_IMAGE")


@pytest.fixture(scope="session")
def control_image(base_image: str) -> str:
    """The control plane's image, built from our Dockerfile."""
    name = "tenure-test/control"
    file = "services/Dockerfile"
    run(
        ["docker", "build", "-q", "--network=host", f"--build-arg=BASE_IMAGE={base_image}", "-t", name, "-f", file, "."]
    )
    return name


@pytest.fixture(scope="session")
def nats_deployed_image(nats_image: str) -> str:
    """The NATS image with our configuration, built from our Dockerfile."""
    name = "tenure-test/nats-deployed"
    file = "services/nats.Dockerfile"
    run(["docker", "build", "-q", f"--build-arg=NATS_IMAGE={nats_image}", "-t", name, "-f", file, "."])
    return name


@pytest.fixture(scope="session")
def compose_command() -> list[str]:
    """`docker-compose` 1.29, or the plugin."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    unavailable("no docker-compose")
    return []
