"""The text of one generated sequence as its tokens come: whole characters only, and nothing of a stop text.

A token may hold a part of a character, so what is not a character yet is held back until it is one. A text that may be
the beginning of a stop text is held back until it can be none. What is shown never changes; joined, it is the text.

Tokens are decoded in a small window that begins at a place where all before it has been shown, so that a long text
costs no more per token than a short one. A model that writes no characters at all (bytes that are no UTF-8) is shown
what the library makes of them after HELD_TOKENS_MAX tokens.

The text ends before the stop text that is complete first; of two that are complete with the same character, before the
one that began first. So how a text falls into tokens changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

HELD_TOKENS_MAX = 64
_NOT_YET = "�"  # what a decoder gives for bytes that are no character


class GrowingText:
    """`decode` is the tokenizer's, without the special tokens."""

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = stops
        self._ids: list[int] = []
        self._window = 0  # where the window begins
        self._shown_ids = 0  # up to where the window's text has been taken
        self._window_text = ""  # of the ids up to there
        self._held = ""  # may begin a stop text
        self._pieces: list[str] = []
        self.stopped = False  # a stop text was met

    @property
    def text(self) -> str:
        """All that has been shown."""
        return "".join(self._pieces)

    def push(self, token: int) -> str:
        """What can be shown now."""
        self._ids.append(token)
        return self._show(self._take(at_end=len(self._ids) - self._shown_ids > HELD_TOKENS_MAX), at_end=False)

    def end(self) -> str:
        """The rest, after the last token."""
        return self._show(self._take(at_end=True), at_end=True)

    def _take(self, *, at_end: bool) -> str:
        """The characters that have become whole."""
        text = self._decode(self._ids[self._window :])
        if len(text) <= len(self._window_text) or (text.endswith(_NOT_YET) and not at_end):
            return ""
        new = text[len(self._window_text) :]
        self._window, self._shown_ids = self._shown_ids, len(self._ids)
        self._window_text = self._decode(self._ids[self._window :])
        return new

    def _show(self, new: str, *, at_end: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        met = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if met:
            self.stopped = True
            text, self._held = text[: min(met)[1]], ""
        elif at_end:
            self._held = ""
        else:
            keep = len(text) - self._may_begin(text)
            text, self._held = text[:keep], text[keep:]
        if text:
            self._pieces.append(text)
        return text

    def _may_begin(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
