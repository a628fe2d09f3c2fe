"""An adapter that tells what its process sees. Importing this, as a fork server can, puts it into the registry."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile

from schemas.profiles import RuntimeProfile
from worker.adapters import registry


class Spy:
    def prepare(self, profile: RuntimeProfile) -> dict[str, str]:
        numpy = sys.modules.get("numpy")
        return {
            "environment": json.dumps(dict(os.environ)),
            "handles": json.dumps({int(name): _target(name) for name in os.listdir("/proc/self/fd")}),
            "folder": os.getcwd(),
            "temporary": tempfile.gettempdir(),
            "session": str(os.getsid(0)),
            "parent": str(os.getppid()),
            "threads": str(len(os.listdir("/proc/self/task"))),
            "random": str(random.random()),
            "numpy": str(numpy.random.random()) if numpy is not None else "",
            "hash": str(hash("a lease")),
        }


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""  # the handle of this very listing


tempfile.gettempdir()  # what a library may have remembered of the server's environment

registry.ENTRIES["spy"] = registry.Entry(f"{__name__}:Spy", "1", ("embedding",), (), ())
