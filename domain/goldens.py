"""Golden probes: which a profile may carry, and whether a model came near enough to each.

A profile's golden probes are of its own task, named apart, and small enough for every order that repeats them. The
worker measures distances; whether they pass is decided here, by the profile's tolerances and not by the worker's word.
"""

from __future__ import annotations

from msgspec import UnsetType

from domain.deciding.outcomes import Rejected
from schemas.canonical import canonical_json
from schemas.codes import Code
from schemas.evidence import Health
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


def missed(profile: RuntimeProfile, health: Health) -> str:
    """Which golden probe of the profile this health check does not prove, in words; empty where it proves all."""
    if isinstance(profile.golden, UnsetType):
        return ""
    seen = {} if isinstance(health.golden, UnsetType) else {one.name: one for one in health.golden}
    for probe in profile.golden:
        one = seen.get(probe.name)
        if one is None:
            return f"golden probe `{probe.name}` was not asked"
        if one.distance is None or not one.distance <= probe.tolerance:
            found = one.detail if one.distance is None else f"distance {one.distance:.6g}"
            return f"golden probe `{probe.name}`: {found}; at most {probe.tolerance:.6g} passes"
    return ""
