"""What all image models need of their folder besides weights: a processor that this adapter knows.

transformers has two kinds of image processors, by torchvision and by Pillow, whose pixels differ slightly, and takes
the first where torchvision happens to be installed. Adapters here always take Pillow's, so that an answer does not
depend on a package that nobody asked for. The name in the files is that of the first kind, of the second, or of older
code.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from worker.adapters.folder import ModelFolder

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def check_image_processor(look: ModelFolder, allowed: Collection[str]) -> None:
    """One reason where there is none, or one of a kind this adapter does not run."""
    described = [look.read_object(name, needed=False) for name in PROCESSOR_FILES]
    inner = described[0].get("image_processor")  # where there are both, the library takes this one
    chosen = inner if isinstance(inner, dict) else described[1]
    if not chosen:
        if not look.paths & set(PROCESSOR_FILES):
            look.refuse(f"there is no image processor; `{PROCESSOR_FILES[1]}` is needed")
        elif not look.reasons:
            look.refuse(f"none of {', '.join(PROCESSOR_FILES)} describes an image processor")
        return
    named = chosen.get("image_processor_type") or chosen.get("feature_extractor_type")
    if named is None:
        return  # the library goes by the model's type
    name = str(named).removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    if name not in allowed:
        look.refuse(f"image processor `{named}` is not one of {', '.join(sorted(allowed))}")


def image_processor(folder: Path) -> Any:
    """The one that the folder describes, by Pillow."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(
        str(folder), backend="pil", local_files_only=True, trust_remote_code=False
    )
