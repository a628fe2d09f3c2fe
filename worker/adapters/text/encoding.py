"""The vectors of texts that go through a SentenceTransformer together, as its `encode` gives them.

`encode` makes sure at each call of what can't change here: the device of every parameter, the mode of every module,
which arguments the modules take. For one short sentence on a CPU that is a tenth of the time and more. So the same
steps are taken without it: the model's own `preprocess` and forward pass, its `truncate_dim`, the library's way to
normalise. Whether these are all the steps is not assumed of a release that may know others: with the first texts, those
of the health check, both ways are taken, and the short one only from then on, where it gave the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import structlog

_log = structlog.get_logger(__name__)


class Encoding:
    """Of one loaded model, which is given to it each time: it keeps none alive."""

    def __init__(self, torch: Any, device: str, *, normalize: bool) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._normalize = normalize
        self.short: bool | None = None  # None until the first texts

    def vectors(self, model: Any, texts: list[str], prompt_name: str | None) -> Any:
        """A numpy array of float32, one row for each text. The caller bounds how many go together."""
        if self.short:
            found = self._short(model, texts, prompt_name)
        else:
            found = model.encode(
                texts,
                prompt_name=prompt_name,
                batch_size=len(texts),
                normalize_embeddings=self._normalize,
                convert_to_tensor=True,
                show_progress_bar=False,
            )
            if self.short is None:
                self.short = self._agrees(model, texts, prompt_name, found)
        return found.to(device="cpu", dtype=self._torch.float32).numpy()

    def _short(self, model: Any, texts: list[str], prompt_name: str | None) -> Any:
        torch = self._torch
        with torch.inference_mode():
            features = model.preprocess(texts, prompt=None if prompt_name is None else model.prompts[prompt_name])
            for name, value in features.items():
                if torch.is_tensor(value):
                    features[name] = value.to(self._device)
            found = model(features)["sentence_embedding"]
            if model.truncate_dim is not None:
                found = found[..., : model.truncate_dim]
            return torch.nn.functional.normalize(found, p=2, dim=1) if self._normalize else found

    def _agrees(self, model: Any, texts: list[str], prompt_name: str | None, wanted: Any) -> bool:
        try:
            found = self._short(model, texts, prompt_name)
        except Exception as error:  # noqa: BLE001 - a release that does it in another way; `encode` knows how
            _log.info("encode_only", reason=f"{type(error).__name__}: {error}")
            return False
        if found.dtype != wanted.dtype or not self._torch.equal(found, wanted):
            _log.info("encode_only", reason="its steps gave another vector")
            return False
        return True
