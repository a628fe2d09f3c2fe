"""Numbers of steps that a scheduler cannot do are refused by themselves, and what one request did to it is not kept."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.codes import Code, Refusal
from schemas.tasks.image import Imagined, ImagineRequest
from services.showcase.diffusion import PROFILE, SETTINGS, stable_diffusion
from worker.adapters.image.diffusion import DiffusionAdapter
from worker.adapters.torch_runtime import AloneTurn
from worker.model.frames import Refused

Start = Callable[..., DiffusionAdapter]


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say while they are imported is not ours
        import diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion  # noqa: F401


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """With this scheduler and its settings, and changes of the profile's."""
    made: list[DiffusionAdapter] = []

    def begin(scheduler: str, settings: dict[str, Any] | None = None, **changes: Any) -> DiffusionAdapter:
        stable_diffusion(tmp_path)
        _edit(tmp_path / "model_index.json", {"scheduler": ["diffusers", scheduler]})
        _edit(tmp_path / "scheduler" / "scheduler_config.json", {"_class_name": scheduler, **(settings or {})})
        adapter = DiffusionAdapter()
        diffusion = msgspec.structs.replace(SETTINGS, **{"steps_max": 100, **changes})
        adapter.prepare(msgspec.structs.replace(PROFILE, diffusion=diffusion))
        made.append(adapter)
        adapter.start(tmp_path)
        return adapter

    yield begin
    for adapter in made:
        adapter.unload()


def _edit(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def ask(adapter: DiffusionAdapter, *steps: int, count: int = 1) -> list[Any]:
    requests = [ImagineRequest("a cat", steps=each, seed=1, count=count) for each in steps]
    return adapter.invoke(requests, AloneTurn())


def made(answer: Any) -> Imagined:
    assert isinstance(answer, Imagined), answer
    return answer


@pytest.mark.parametrize(
    ("scheduler", "good", "bad"),
    [("LCMScheduler", 2, 51), ("TCDScheduler", 2, 51), ("PNDMScheduler", 4, 3), ("PNDMScheduler", 4, 1)],
)
def test_steps_that_it_cannot_do_refuse_their_request_only(scheduler: str, good: int, bad: int, start: Start) -> None:
    adapter = start(scheduler, {"skip_prk_steps": False} if scheduler == "PNDMScheduler" else None, steps=good)
    alone = made(ask(adapter, good)[0])
    first, refused, last = ask(adapter, good, bad, good)
    assert (first, last) == (alone, alone)
    assert isinstance(refused, Refused)
    assert refused.code == Code.INPUT_INVALID
    assert refused.message.startswith(f"{bad} steps are not possible with this model's {scheduler}: ")


def test_a_health_check_asks_for_steps_that_are_possible(start: Start) -> None:
    adapter = start("PNDMScheduler", {"skip_prk_steps": False}, steps=5)
    assert adapter.health().capability
    assert made(adapter.invoke([adapter.health_request()], AloneTurn())[0]).steps == 5


def test_a_profile_with_impossible_steps_does_not_load(start: Start) -> None:
    with pytest.raises(Refusal, match="for all requests: 3 steps are not possible") as caught:
        start("PNDMScheduler", {"skip_prk_steps": False}, steps=3)
    assert caught.value.code == Code.LOAD_FAILED


@pytest.mark.filterwarnings("ignore")  # of the library, that it changes the configuration
def test_an_odd_number_of_steps_changes_no_other_answer(start: Start) -> None:
    """This scheduler sets its own `lower_order_final` then, and would keep it."""
    settings = {"lower_order_final": False, "final_sigmas_type": "sigma_min", "solver_order": 2}
    adapter = start("DPMSolverSinglestepScheduler", settings)
    alone = made(ask(adapter, 4)[0])
    made(ask(adapter, 5)[0])
    assert ask(adapter, 4)[0] == alone
    assert adapter.model.scheduler.config["lower_order_final"] is False


def test_an_exception_over_one_request_is_not_the_others(start: Start) -> None:
    adapter = start("PNDMScheduler")

    def fail(module: Any, inputs: Any) -> None:
        if inputs[0].shape[-1] > SETTINGS.width // 2:
            raise ZeroDivisionError("over this one")

    adapter.model.unet.register_forward_pre_hook(fail)
    small, large = (ImagineRequest("a cat", width=side, seed=1) for side in (SETTINGS.width, 2 * SETTINGS.width))
    first, refused, last = adapter.invoke([small, large, small], AloneTurn())
    assert made(first) == made(last)
    assert refused == Refused(Code.INTERNAL_ERROR, "ZeroDivisionError: over this one")
