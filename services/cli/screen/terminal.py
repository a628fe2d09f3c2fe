"""Terminal: where output goes. Results on stdout, everything else on stderr.

With `--json`, stdout gets exactly one JSON document: the result, or `{"error": {...}}`. A refusal is printed as
`CODE: message` and what to do about it, on stderr, in both modes. Whatever a terminal shows
goes through `plain`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from schemas.codes import ADVICE, Refusal
from services.cli.exits import exit_code
from services.cli.screen.plain import plain

PIPE_WIDTH = 1_000  # nobody's screen: a table in a pipe is not folded
SENTENCE_CHARACTERS = 40  # what is longer is read as words, and may be folded
GAP = 3  # between columns
_STYLES = {
    "loaded": "green",
    "completed": "green",
    "ok": "green",
    "yes": "green",
    "held": "green",
    "alive": "green",
    "unknown": "yellow",
    "lost": "red",
    "failed": "red",
    "mismatch": "red",
    "not held": "red",
    "not_serving": "red",
    "cancelled": "yellow",
}


class Terminal:
    """One command's output. `document` may be called once."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)
        self._written = False

    def document(self, value: Any) -> None:
        """The one JSON document. Structs are written as their fields."""
        if self._written:
            raise AssertionError("a command writes one JSON document")
        self._written = True
        text = msgspec.json.format(msgspec.json.encode(value), indent=2)
        sys.stdout.write(text.decode() + "\n")
        sys.stdout.flush()

    def result(self, document: Any, show: Callable[[], None]) -> None:
        """The answer to a command: the document for programs, or what `show` prints for people."""
        if self.as_json:
            self.document(document)
        else:
            show()

    def line(self, value: Any) -> None:
        """One document of an endless answer, on a line of its own (`events tail --follow --json`)."""
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()

    def print(self, text: str) -> None:
        """Text on stdout; exactly as it is where no terminal reads it."""
        self.out.print(escape(plain(text) if self.out.is_terminal else text), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
        """A table as docker and kubectl print them; `empty` is said on stderr where there are no rows.

        Sentences are folded at words where the screen is narrow. Ids and states never are: where even they do not
        fit, the terminal breaks the lines, and nothing is left out.
        """
        cells = [[cell(each) for each in row] for row in rows]
        if not cells:
            if empty:
                self.say(empty)
            return
        widths = [max(len(name), *(row[at].cell_len for row in cells)) for at, name in enumerate(columns)]
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for name, width in zip(columns, widths, strict=True):
            table.add_column(name, no_wrap=width <= SENTENCE_CHARACTERS, overflow="fold")
        for row in cells:
            table.add_row(*row)
        needed = sum(min(width, SENTENCE_CHARACTERS) for width in widths) + GAP * (len(widths) - 1)
        if needed > self.out.width:
            table.width = needed
        self.out.print(table, crop=False)

    def facts(self, rows: Iterable[tuple[str, object]]) -> None:
        """Names and values, one a line."""
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(name, cell(value))
        self.out.print(table)

    def say(self, text: str) -> None:
        """A message to the person, on stderr."""
        self.err.print(escape(plain(text)), highlight=False, soft_wrap=True)

    def live(self, renderable: Any, refresh_per_s: int) -> Live:
        """Draw something on stderr until the block ends, then leave no trace of it."""
        return Live(renderable, console=self.err, refresh_per_second=refresh_per_s, transient=True)

    def refuse(self, refusal: Refusal) -> int:
        """Print a refusal and return the exit code it deserves."""
        advice = refusal.detail.get("advice") or ADVICE[refusal.code]
        detail = {name: text for name, text in refusal.detail.items() if name != "advice"}
        self.err.print(
            f"[bold red]{refusal.code}[/]: {escape(plain(refusal.message))}", highlight=False, soft_wrap=True
        )
        self.err.print(f"  {escape(plain(advice))}", highlight=False, soft_wrap=True)
        if self.as_json and not self._written:
            error = {"code": refusal.code, "message": refusal.message, "advice": advice, "detail": detail}
            self.document({"error": error})
        return exit_code(refusal.code)


def cell(value: object) -> Text:
    """A table cell: never markup, `-` for nothing, states in their colour."""
    text = "-" if value is None or value == "" else plain(str(value))
    return Text(text, style=_STYLES.get(text, ""))


def _console(stream: Any) -> Console:
    terminal = stream.isatty()
    return Console(file=stream, width=None if terminal else PIPE_WIDTH, highlight=False)
