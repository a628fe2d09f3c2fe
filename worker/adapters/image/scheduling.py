"""The scheduler of a diffusion pipeline, fresh for each call, and the numbers of steps that it can do.

Schedulers know limits of their own (LCM no more steps than it was trained for, PNDM with Runge-Kutta steps at least
four) and raise where they are asked for others. Some change their own configuration over a number of steps, for all
calls that follow.
"""

from __future__ import annotations

import copy
from typing import Any


class Scheduling:
    """`scheduler` is as it was loaded, and is never run."""

    def __init__(self, scheduler: Any, *, fixed_times: bool) -> None:
        self._scheduler = scheduler
        self._fixed_times = fixed_times  # the pipeline tells it its times, and any number of them will do

    @property
    def name(self) -> str:
        return type(self._scheduler).__name__

    def fresh(self) -> Any:
        return copy.deepcopy(self._scheduler)

    def obstacle(self, steps: int) -> str:
        """Why it can't do as many steps, or as few; empty where it can."""
        if self._fixed_times:
            return ""
        try:
            self.fresh().set_timesteps(steps)
        except Exception as error:  # noqa: BLE001 - schedulers have no exception of their own for it
            return str(error) or type(error).__name__
        return ""
