"""Records `tenure demo` as docs/images/demo.svg: the end of a real run, as a terminal of 100 columns shows it.

    make demo                                 # once, so that everything is installed
    .venv/bin/python docs/images/record.py

The command runs on a terminal of its own (a pty) and a fresh data folder, under a made-up actor so that the picture
names nobody. The table of evidence and the verdict are kept as they were printed, colours included; of the lines
above them only the number is said. Nothing is written unless the command ended with 0. The picture follows the
reader's light or dark mode and loads nothing from anywhere.
"""

from __future__ import annotations

import os
import pty
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

OUTPUT = Path(__file__).with_name("demo.svg")
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "services.cli.app", "demo"]
COLUMNS, LINES = 100, 50
ACTOR = "operator@example"
FIRST = "STEP "  # the line with which the picture begins
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
FONT_ASPECT_RATIO = 0.6
# Background, text, then black, red, green, yellow, blue, magenta, cyan, white.
LIGHT = TerminalTheme((255, 255, 255), (36, 41, 47), [(36, 41, 47), (180, 35, 24), (17, 112, 53), (138, 90, 0),
                      (9, 80, 170), (120, 60, 160), (10, 105, 120), (90, 98, 106)])  # fmt: skip
DARK = TerminalTheme((20, 25, 31), (217, 225, 232), [(90, 98, 106), (255, 123, 114), (86, 211, 120), (224, 176, 84),
                     (110, 168, 220), (200, 150, 240), (100, 205, 215), (217, 225, 232)])  # fmt: skip
PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="A run of tenure demo">
  <style>
    text {{ font-family: FONTS; font-size: {char_height}px; }}
    .window {{ fill: #ffffff; stroke: #b6c0ca; }}
    .dot {{ fill: #c9d1d9; }}
    {styles}
    @media (prefers-color-scheme: dark) {{
    .window {{ fill: #14191f; stroke: #46525f; }}
    .dot {{ fill: #46525f; }}
    DARK_STYLES
    }}
  </style>
  <defs>{lines}</defs>
  <rect class="window" width="100%" height="100%" rx="8" stroke-width="2"/>
  <circle class="dot" cx="22" cy="22" r="6"/><circle class="dot" cx="42" cy="22" r="6"/>
  <circle class="dot" cx="62" cy="22" r="6"/>
  <g transform="translate({terminal_x}, {terminal_y})">{backgrounds}{matrix}</g>
</svg>
"""


def run(data_dir: str) -> str:
    """What the command writes on a terminal. Ends this process if the command did not end with 0."""
    pid, terminal = pty.fork()
    if pid == 0:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
        told = {"TENURE_DATA_DIR": data_dir, "TENURE_ACTOR": ACTOR, "TERM": "xterm-256color"}
        os.chdir(ROOT)
        os.execve(COMMAND[0], COMMAND, {**kept, **told, "COLUMNS": str(COLUMNS), "LINES": str(LINES)})  # noqa: S606
    written = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # the way Linux says that the other side of a pty is closed
            break
        if not part:
            break
        written += part
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = written.decode()
    if status != 0:
        sys.exit(f"{text}\nthe command ended with {status}; nothing was written")
    return text


def picture(text: str) -> str:
    """The picture of the lines from FIRST on, in light and in dark."""
    lines = [line.rstrip("\r") for line in text.rstrip().split("\n")]  # a return within draws the same line again
    first = next(at for at, line in enumerate(lines) if Text.from_ansi(line).plain.startswith(FIRST))
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text("$ ", style="bold") + Text("tenure demo"))
        left_out = f"⋮ {first} lines: the servers start, each step as it happens, the servers end"
        console.print(Text(left_out, style="dim"))
        for line in lines[first:]:
            console.print(Text.from_ansi(line))
    dark = exported(console, DARK, "{styles}").replace("{", "{{").replace("}", "}}")  # it becomes part of a format
    return exported(console, LIGHT, PICTURE.replace("FONTS", FONTS).replace("DARK_STYLES", dark))


def exported(console: Console, theme: TerminalTheme, code_format: str) -> str:
    return console.export_svg(
        title="", theme=theme, clear=False, code_format=code_format, font_aspect_ratio=FONT_ASPECT_RATIO,
        unique_id="demo",
    )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tenure-demo-") as data_dir:
        OUTPUT.write_text(picture(run(data_dir)), encoding="utf-8")
