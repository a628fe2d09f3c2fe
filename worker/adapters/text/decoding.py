"""Generates tokens for several sequences at once, one token of each in a step, with the model's own key-value cache.

Sequences of different length are padded on the left, each with its own first token and masked, so that nothing of one
is ever computed with another's numbers. What ends leaves the batch at once. Before each step everyone is asked whether
somebody still waits. Each sequence has its bound on new tokens, so the loop ends.

A token is the most probable one, or, with a temperature, one drawn from the smallest set of tokens whose probabilities
reach `top_p`, with random numbers of the sequence's own: what else is in the batch draws nothing from them. A row of
logits without a finite maximum ends its sequence as `not_finite`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Literal

from worker.adapters.text.growing_text import GrowingText

Finish = Literal["stop", "length", "cancelled", "not_finite"]


class Sequence:
    """One sequence: what it starts with, how it goes on, and how it ended."""

    def __init__(
        self,
        index: int,
        prompt: list[int],
        text: GrowingText,
        new_tokens_max: int,
        temperature: float,
        top_p: float,
        random: Any,
    ) -> None:
        self.index = index  # of its request
        self.prompt = prompt
        self.text = text
        self.new_tokens_max = new_tokens_max
        self.temperature = temperature
        self.top_p = top_p
        self.random = random  # a torch.Generator, None where nothing is drawn
        self.tokens = 0
        self.finish: Finish | None = None

    def take(self, token: int, ends: Collection[int]) -> str:
        """What can be shown of the text now. An end token has no text."""
        self.tokens += 1
        if token in ends:
            self.finish = "stop"
            return self.text.end()
        shown = self.text.push(token)
        if self.text.stopped:
            self.finish = "stop"
        elif self.tokens >= self.new_tokens_max:
            return shown + self.close("length")
        return shown

    def close(self, finish: Finish) -> str:
        """End it here. What was held back is shown; a stop text that this completes is the reason then."""
        rest = self.text.end()
        self.finish = "stop" if self.text.stopped else finish
        return rest


class Decoder:
    """`ends` are the token ids that end a text; `show` is called with what a sequence has to show."""

    def __init__(
        self,
        torch: Any,
        model: Any,
        ends: Collection[int],
        stopped: Callable[[int], bool],
        show: Callable[[Sequence, str], None],
    ) -> None:
        self._torch = torch
        self._model = model
        # The library renamed it; the old name is warned about and then no longer known.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._ends = ends
        self._stopped = stopped
        self._show = show

    def run(self, sequences: list[Sequence]) -> None:
        """Each of them has a `finish` afterwards."""
        with self._torch.inference_mode():
            active = self._still_wanted(sequences)
            if active:
                self._generate(active)

    def _still_wanted(self, sequences: list[Sequence]) -> list[Sequence]:
        for sequence in sequences:
            if sequence.finish is None and self._stopped(sequence.index):
                self._show(sequence, sequence.close("cancelled"))
        return [sequence for sequence in sequences if sequence.finish is None]

    def _generate(self, active: list[Sequence]) -> None:
        from transformers import DynamicCache

        torch, device = self._torch, self._model.device
        cache = DynamicCache(config=self._model.config)
        width = max(len(sequence.prompt) for sequence in active)
        pads = [width - len(sequence.prompt) for sequence in active]
        ids = [[row.prompt[0]] * pad + row.prompt for row, pad in zip(active, pads, strict=True)]
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads], device=device)
        tokens = torch.tensor(ids, device=device)
        for _ in range(max(sequence.new_tokens_max for sequence in active)):
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            out = self._model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_name: cache},
            )
            chosen = self._choose(out.logits[:, -1].float(), active)
            for sequence, token in zip(active, chosen, strict=True):
                if token is None:
                    sequence.finish = "not_finite"
                else:
                    self._show(sequence, sequence.take(token, self._ends))
            self._still_wanted(active)
            kept = [at for at, sequence in enumerate(active) if sequence.finish is None]
            if not kept:
                return
            tokens = torch.tensor([[chosen[at]] for at in kept], device=device)
            if len(kept) < len(active):
                rows = torch.tensor(kept, device=device)
                cache.batch_select_indices(rows)
                mask = mask[rows]
                active = [active[at] for at in kept]
            mask = torch.cat([mask, mask.new_ones((len(active), 1))], dim=1)

    def _choose(self, logits: Any, active: list[Sequence]) -> list[int | None]:
        """A token for each row, None where its logits are no numbers."""
        best = logits.max(dim=-1)
        chosen = best.indices
        drawing = [at for at, sequence in enumerate(active) if sequence.random is not None]
        if drawing:
            chosen[drawing] = self._draw(logits[drawing], [active[at] for at in drawing])
        finite = self._torch.isfinite(best.values).tolist()
        return [token if sound else None for token, sound in zip(chosen.tolist(), finite, strict=True)]

    def _draw(self, logits: Any, sequences: list[Sequence]) -> Any:
        torch = self._torch
        column = {"device": logits.device, "dtype": torch.float64}
        temperature = torch.tensor([[sequence.temperature] for sequence in sequences], **column)
        top_p = torch.tensor([[sequence.top_p] for sequence in sequences], **column)
        drawn = [[float(torch.rand(1, generator=each.random, dtype=torch.float64))] for each in sequences]
        probabilities = torch.softmax(logits.double() / temperature, dim=-1)
        ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(before >= top_p, 0.0)  # the first is always kept
        reached = ordered.cumsum(-1)
        target = torch.tensor(drawn, **column) * reached[:, -1:]
        place = torch.searchsorted(reached, target, right=True).clamp(max=reached.shape[-1] - 1)
        return tokens.gather(-1, place).squeeze(-1)
