"""The runtime's allocator: three numbers, or a reason. No GPU was there to give real ones: they are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker.memory.allocator import NO_DEVICE, NO_TORCH, NOT_ON_CPU, AllocatorReading, read_allocator


def told(allocated: int, reserved: int, peak: int) -> Any:
    """The five functions of torch.cuda that are asked, with what they returned."""

    def known(value: int) -> Any:
        def function(device: str) -> int:
            if device not in ("cuda", "cuda:0"):
                raise ValueError(f"Invalid device argument {device}")
            return value

        return function

    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: True,
            memory_allocated=known(allocated),
            memory_reserved=known(reserved),
            max_memory_allocated=known(peak),
        )
    )


def test_three_numbers_of_one_moment() -> None:
    assert read_allocator(told(5, 8, 7), "cuda:0") == AllocatorReading(5, 8, 7)
    assert read_allocator(told(0, 2, 7), "cuda") == AllocatorReading(0, 2, 7)  # a measured 0 stays one


def test_the_functions_that_are_asked_are_torchs_own() -> None:
    for name in vars(told(0, 0, 0).cuda):
        assert callable(getattr(torch.cuda, name))


def test_on_cpu_nothing_is_counted_and_that_is_not_zero() -> None:
    assert read_allocator(torch, "cpu") == AllocatorReading(unavailable=NOT_ON_CPU)


def test_without_torch_nobody_counts() -> None:
    assert read_allocator(None, "cuda:0") == AllocatorReading(unavailable=NO_TORCH)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_the_real_torch_without_a_device_gives_the_reason_and_not_its_zeros() -> None:
    assert torch.cuda.memory_allocated() == 0  # what torch itself says where it has nothing to count
    assert read_allocator(torch, "cuda:0") == AllocatorReading(unavailable=NO_DEVICE)


def test_a_device_that_went_away_is_a_reason() -> None:
    reading = read_allocator(told(1, 2, 3), "cuda:5")
    assert (reading.allocated_bytes, "Invalid device argument" in (reading.unavailable or "")) == (None, True)
