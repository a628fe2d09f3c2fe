"""What the ML runtime's own allocator holds of a device: read in the model process, told in its frames.

torch keeps freed device memory for itself: `reserved_bytes` is what it took from the driver, `allocated_bytes` the
part of it that tensors are in, `peak_bytes` the most that tensors were in since the process began. The driver's
context, and what other libraries of the process took, are in neither: the driver's count per process is always
higher. On cpu torch counts nothing. What is not counted is None with the reason, never 0.

Nothing here imports torch: the module is handed in by who has it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

NOT_ON_CPU = "the runtime counts no allocator bytes on cpu"
NO_TORCH = "the model's runtime is not torch: nobody counts its allocator's bytes"
NO_DEVICE = "torch sees no usable CUDA device"


class AllocatorReading(Struct, frozen=True):
    """One moment of the allocator of one device. All three are numbers, or `unavailable` says why none is."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    unavailable: str | None = None


def read_allocator(torch: Any | None, device: str) -> AllocatorReading:
    """The allocator's count for `device` ("cpu", "cuda", "cuda:1"). Never raises: a lost device is a reason, too."""
    if not device.startswith("cuda"):
        return AllocatorReading(unavailable=NOT_ON_CPU)
    if torch is None:
        return AllocatorReading(unavailable=NO_TORCH)
    try:
        if not torch.cuda.is_available():
            return AllocatorReading(unavailable=NO_DEVICE)
        return AllocatorReading(
            allocated_bytes=int(torch.cuda.memory_allocated(device)),
            reserved_bytes=int(torch.cuda.memory_reserved(device)),
            peak_bytes=int(torch.cuda.max_memory_allocated(device)),
        )
    except (RuntimeError, AssertionError, ValueError) as error:  # what torch raises for a device that is not there
        return AllocatorReading(unavailable=f"torch.cuda: {error}"[:400])
