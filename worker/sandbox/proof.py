"""Whether a model process can reach anything outside: found out by trying, before a weight is read.

    lay out what attempts need -> try everything -> confine -> try everything again -> judge

`proven` means: nothing got through inside, each attempt that worked outside was refused inside, and every
attempt that a proof needs did work outside. It does not ask which layers did it: a kernel without Landlock's
TCP rules, or a container that allows no namespaces, is proven where the remaining layers refuse everything. And
no layer counts because it was applied.

An attempt that fails outside too has taken nothing away. It is told with the reason, as not tried and not
refused; if it then works inside, it got through like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from schemas.evidence import Attempt, OfflineProof
from worker.sandbox.attempts import TRIALS
from worker.sandbox.confinement import LAYERS, Applied, confine
from worker.sandbox.escape import Outcome, Targets, Trial, laid_out, try_out
from worker.sandbox.paths import Policy


def isolate(
    policy: Policy, targets: Targets, kept: Collection[int] = (), layers: Collection[str] = LAYERS
) -> OfflineProof:
    """Confine this process for good and say what came of it. `kept` are the descriptors that stay open.

    Only tests name fewer layers than all.
    """
    with laid_out(policy, targets) as ground:
        outside = [try_out(trial, ground) for trial in TRIALS]
        applied = confine(policy, kept, layers)
        inside = [try_out(trial, ground) for trial in TRIALS]
    return judge(TRIALS, applied, outside, inside)


def judge(
    trials: Sequence[Trial], applied: Applied, outside: Sequence[Outcome], inside: Sequence[Outcome]
) -> OfflineProof:
    attempts = [_attempt(*each) for each in zip(trials, outside, inside, strict=True)]
    needed = {trial.action for trial in trials if trial.needed}
    proven = bool(needed) and all(
        attempt.refused or (not attempt.tried and attempt.action not in needed) for attempt in attempts
    )
    return OfflineProof(applied=applied.applied, missing=applied.missing, attempts=attempts, proven=proven)


def _attempt(trial: Trial, outside: Outcome, inside: Outcome) -> Attempt:
    tried = outside.got_through or inside.got_through
    refused = outside.got_through and inside.refused
    detail = inside.detail if tried else f"could not be tried, outside: {outside.detail}"
    if tried and not refused and not inside.got_through:
        detail = f"no layer's answer: {inside.detail}"
    return Attempt(action=trial.action, refused=refused, detail=detail, outside=outside.detail, tried=tried)
