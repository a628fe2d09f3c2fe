"""Exit codes of every `tenure` command.

| code | meaning                                                                              |
|------|--------------------------------------------------------------------------------------|
| 0    | done, and what was asked about holds                                                 |
| 1    | refused or failed, with a code from schemas.codes on stderr                          |
| 2    | the command line is wrong                                                            |
| 3    | conflict: it already runs, the name is taken, or somebody else is at the same thing  |
| 4    | a server is not reachable                                                            |
| 130  | interrupted (Ctrl-C)                                                                 |
"""

from __future__ import annotations

from schemas.codes import Code

OK = 0
REFUSED = 1
USAGE = 2
CONFLICT = 3
UNREACHABLE = 4
INTERRUPTED = 130

_CONFLICTS = frozenset(
    {Code.CONFLICT, Code.NAME_TAKEN, Code.RESIDENCY_CONFLICT, Code.LEASE_HELD, Code.DUPLICATE_COMMAND}
)


def exit_code(code: Code) -> int:
    """The exit code for a refusal with this code."""
    if code in _CONFLICTS:
        return CONFLICT
    if code is Code.UNAVAILABLE:
        return UNREACHABLE
    return REFUSED
