"""The images of several requests, some at a time: what a device takes at once, whoever asked for it.

All headers are looked at first, so that what is certain to be refused costs nothing. Pixels are decoded when their turn
comes, one image after the other, and only what the model needs of them is kept. An image that can't be decoded or
prepared refuses its own request, whose other images are left out from then on; so does a request that nobody waits for
any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.codes import Code
from schemas.profiles import ImageSettings
from worker.adapters.contract import Turn
from worker.adapters.guard import Guarded
from worker.adapters.image.pictures import decode, look
from worker.model.frames import Refused

NOBODY_WAITS = Refused(Code.INVOCATION_CANCELLED, "nobody waits for it any more")


@dataclass(frozen=True)
class Item:
    """Image `number` of the batch's request `index`."""

    index: int
    number: int


class ImageBatches:
    """`images` are those of each request, by its place in the batch. `refused` grows while one goes through them."""

    def __init__(self, images: Mapping[int, Sequence[bytes]], settings: ImageSettings, turn: Turn) -> None:
        self._images = images
        self._settings = settings
        self._turn = turn
        self.refused: dict[int, Refused] = {}
        self.conversions: dict[Item, list[str]] = {}
        for index, data in images.items():
            with Guarded(index, self.refused):
                for number, each in enumerate(data):
                    look(each, number, settings)

    def batches(self, size: int, prepare: Callable[[Any], Any]) -> Iterator[list[tuple[Item, Any]]]:
        """Up to `size` items, each with what `prepare` made of its RGB image."""
        batch: list[tuple[Item, Any]] = []
        for index, data in self._images.items():
            for number in range(len(data)):
                prepared = self._prepared(Item(index, number), prepare)
                if prepared is None:
                    break
                batch.append((Item(index, number), prepared))
                if len(batch) == size:
                    yield batch
                    batch = []
        batch = [(item, prepared) for item, prepared in batch if item.index not in self.refused]
        if batch:
            yield batch

    def _prepared(self, item: Item, prepare: Callable[[Any], Any]) -> Any:
        """None where the request is out."""
        if item.index in self.refused:
            return None
        if self._turn.stopped(item.index):
            self.refused[item.index] = NOBODY_WAITS
            return None
        with Guarded(item.index, self.refused):
            picture = decode(self._images[item.index][item.number], item.number, self._settings)
            self.conversions[item] = picture.conversions
            return prepare(picture.image)
        return None

    def conversions_of(self, index: int) -> list[list[str]]:
        return [self.conversions[Item(index, number)] for number in range(len(self._images[index]))]
