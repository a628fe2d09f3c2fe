"""What the guides, runbooks and advice tell a person to type exists, and links between the pages lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from schemas.codes import ADVICE
from schemas.generate.describe import slug
from services.cli.app import app
from services.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(tenure [^`]+)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def commands_in(text: str) -> Iterator[str]:
    """Each `tenure …` that a page tells a person to type, without comments and redirections."""
    for block in FENCED.findall(text):
        for line in block.splitlines():
            typed = re.split(r"\s+#|\s*[|>]", line.strip())[0]
            if typed.startswith("tenure "):
                yield typed
    yield from INLINE.findall(text)


def fault_of(typed: str) -> str | None:
    """What is wrong with a command line: a command or an option that the program does not have."""
    command: click.Command = get_command(app)  # type: ignore[assignment]
    options = _options(command)
    for word in shlex.split(typed)[1:]:
        if word.startswith("-"):
            if word.partition("=")[0] not in options:
                return f"{typed}: no option {word}"
        elif isinstance(command, click.Group) or hasattr(command, "commands"):
            known = command.commands
            if word not in known:
                return f"{typed}: no command {word}"
            command = known[word]
            options = options | _options(command)
    return None


def _options(command: click.Command) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}


def anchors(path: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_commands_that_exist(page: Path) -> None:
    faults = [fault for typed in commands_in(page.read_text(encoding="utf-8")) if (fault := fault_of(typed))]
    assert faults == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_advice_names_only_commands_that_exist() -> None:
    assert [fault for advice in ADVICE.values() for typed in commands_in(advice) if (fault := fault_of(typed))] == []


def test_a_wrong_command_is_found() -> None:
    assert fault_of("tenure prove run") == "tenure prove run: no command prove"
    assert fault_of("tenure probe run X --fast") == "tenure probe run X --fast: no option --fast"
    assert fault_of("tenure probe run PROFILE --json") is None
    assert list(commands_in("```sh\ntenure ps   # now\npip install x\n```\nsay `tenure up`")) == [
        "tenure ps",
        "tenure up",
    ]


def test_every_setting_is_in_the_deployment_guide() -> None:
    page = (ROOT / "docs" / "guide" / "deployment.md").read_text(encoding="utf-8")
    assert [name for name in Settings.model_fields if f"`TENURE_{name.upper()}`" not in page] == []
