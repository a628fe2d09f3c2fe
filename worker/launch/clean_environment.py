"""The environment of a process of ours that has an ML runtime: an allow-list, the offline switches, its own scratch."""

from __future__ import annotations

import os
from pathlib import Path

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")
# How often an idle thread of OpenMP looks for work before it sleeps: some half a millisecond, the time from one layer
# to the next. The library's own 300,000 burn a processor for ten milliseconds and more after each inference, and for
# as long again at each step where the other threads have no processor: on a busy machine that is most of the time.
SPINS = 10_000
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
        "GOMP_SPINCOUNT": str(SPINS),
        "MKL_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "JOBLIB_MULTIPROCESSING": "0",
    }
