"""Streamed text: whole characters, nothing of a stop text, the same however it falls into tokens."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from worker.adapters.text.growing_text import HELD_TOKENS_MAX, GrowingText

TEXTS = st.text(alphabet="ab \n.é漢🦊", max_size=40)
STOPS = st.lists(st.text(alphabet="ab .é🦊", min_size=1, max_size=4), max_size=4)


def cut_before_the_first(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule itself: character by character, the first that completes a stop text; the longest where several do."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


class Tokens:
    """A tokenizer whose tokens are any pieces of bytes, handed out as they are asked for."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def of(self, data: bytes, cuts: list[int]) -> list[int]:
        begin = len(self.pieces)
        while data:
            length = cuts[len(self.pieces) % len(cuts)]
            self.pieces.append(data[:length])
            data = data[length:]
        return list(range(begin, len(self.pieces)))

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.pieces[each] for each in ids).decode("utf-8", "replace")


def grow(text: GrowingText, ids: list[int]) -> list[str]:
    shown = []
    for each in ids:
        shown.append(text.push(each))
        if text.stopped:
            break
    return [*shown, text.end()]


@given(TEXTS, STOPS, st.lists(st.integers(1, 7), min_size=1, max_size=5))
@example("ababb", ["abb", "bb"], [1])
@example("xab", ["b", "ab"], [3])
@example("abc", ["abc", "b"], [3])
def test_however_it_is_cut_into_tokens(text: str, stops: list[str], cuts: list[int]) -> None:
    tokens = Tokens()
    growing = GrowingText(tokens.decode, stops)
    shown = grow(growing, tokens.of(text.encode(), cuts))
    expected, stopped = cut_before_the_first(text, stops)
    assert "".join(shown) == growing.text == expected
    assert growing.stopped == stopped
    assert not any("�" in piece for piece in shown)


def test_characters_are_shown_as_soon_as_they_are_whole() -> None:
    tokens = Tokens()
    growing = GrowingText(tokens.decode, [])
    assert [growing.push(each) for each in tokens.of("a🦊b".encode(), [1])] == ["a", "", "", "", "🦊", "b"]


def test_what_may_begin_a_stop_text_is_held_back_until_it_cannot() -> None:
    tokens = Tokens()
    growing = GrowingText(tokens.decode, ["\n\nUser:"])
    assert [growing.push(each) for each in tokens.of(b"hi\n\nUse it", [1])] == [
        *("h", "i", "", "", "", "", "", "\n\nUse ", "i", "t"),
    ]


def test_a_half_character_at_the_end_is_what_the_library_makes_of_it() -> None:
    tokens = Tokens()
    growing = GrowingText(tokens.decode, [])
    shown = grow(growing, tokens.of("ok🦊".encode()[:-1], [1]))
    assert shown == ["o", "k", "", "", "", "�"]


def test_bytes_that_are_no_characters_are_not_held_forever() -> None:
    tokens = Tokens()
    growing = GrowingText(tokens.decode, [])
    ids = tokens.of(b"\x80" * (HELD_TOKENS_MAX * 3), [1])
    assert max(len(growing.push(each)) for each in ids) == HELD_TOKENS_MAX + 1
    growing.end()
    assert growing.text == "�" * len(ids)


def test_the_window_stays_small() -> None:
    tokens, widest = Tokens(), 0

    def decode(ids: list[int]) -> str:
        nonlocal widest
        widest = max(widest, len(ids))
        return tokens.decode(ids)

    growing = GrowingText(decode, [])
    grow(growing, tokens.of(("schön 漢字 🦊 " * 200).encode(), [1, 2]))
    assert widest <= 8


def test_tokens_without_text_show_nothing_and_lose_nothing() -> None:
    pieces = {0: "", 1: "▁Hello", 2: "▁world"}

    def decode(ids: list[int]) -> str:
        """As a sentencepiece decoder: the space before the first word is not shown."""
        return "".join(pieces[each] for each in ids).replace("▁", " ").removeprefix(" ")

    growing = GrowingText(decode, [])
    assert grow(growing, [0, 1, 0, 2, 0]) == ["", "Hello", "", " world", "", ""]
