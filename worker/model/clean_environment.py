"""The environment of a process of ours that has an ML runtime: an allow-list, the offline switches, its own scratch."""

from __future__ import annotations

import os
from pathlib import Path

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def clean_environment(scratch: Path, threads: int) -> dict[str, str]:
    """The whole of it. `scratch` is home and temporary folder; libraries read `threads` when they are loaded."""
    source_root = str(Path(__file__).resolve().parents[2])
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        **_OFFLINE,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the driver's order: a profile's device_index names what is measured
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "HF_HOME": str(scratch / "hf"),
        "PYTHONPATH": source_root,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "JOBLIB_MULTIPROCESSING": "0",
    }
