"""What golden probes a profile may carry: of its own task, named apart, small enough for every order that repeats them.

The rule is on the profile and not on the answers: whether a model comes near enough is measured by the worker, and a
miss is a failed probe like any other.
"""

from __future__ import annotations

from msgspec import UnsetType

from domain.deciding.outcomes import Rejected
from schemas.canonical import canonical_json
from schemas.codes import Code
from schemas.profiles import RuntimeProfile
from schemas.tasks.golden import GOLDEN_BYTES_MAX
from schemas.tasks.requests import REQUEST_OF, RESULT_OF


def refuse_goldens(profile: RuntimeProfile) -> Rejected | None:
    """Why the profile's golden probes can't be recorded, None where they can."""
    if isinstance(profile.golden, UnsetType):
        return None
    asked, given = REQUEST_OF.get(profile.task), RESULT_OF.get(profile.task)
    if asked is None or given is None:
        return Rejected(Code.COMMAND_MALFORMED, f"there are no golden probes for task `{profile.task}`")
    names: set[str] = set()
    for probe in profile.golden:
        if probe.name in names:
            return Rejected(Code.COMMAND_MALFORMED, f"two golden probes are named `{probe.name}`")
        names.add(probe.name)
        if not isinstance(probe.request, asked) or not isinstance(probe.expected, given):
            pair = f"{type(probe.request).__name__} with {type(probe.expected).__name__}"
            wanted = f"{asked.__name__} with {given.__name__}"
            return Rejected(Code.COMMAND_MALFORMED, f"golden probe `{probe.name}` is {pair}; the task takes {wanted}")
    size = len(canonical_json(profile.golden))
    if size > GOLDEN_BYTES_MAX:
        message = f"the golden probes take {size} bytes as JSON; the bound is {GOLDEN_BYTES_MAX}"
        return Rejected(Code.MESSAGE_TOO_LARGE, message)
    return None
