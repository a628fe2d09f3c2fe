"""Text from elsewhere as a terminal may show it: names, reasons, a model's answer, the end of a process's output.

Control characters would move the cursor, colour or overwrite what is above, and embedded directions would show a text
in another order than it is in. Both are shown as Python writes them (`\\x1b`, `\\u202e`); line ends and tabs stay.
"""

from __future__ import annotations

import re

_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_DIRECTIONS = r"\u202a-\u202e\u2066-\u2069"
_HARMFUL = re.compile(f"[{_CONTROLS}{_DIRECTIONS}]")


def plain(text: str) -> str:
    return _HARMFUL.sub(lambda found: ascii(found.group())[1:-1], text)
