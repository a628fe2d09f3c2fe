"""What counts as proof: the judgement alone, on outcomes given."""

from __future__ import annotations

import errno
import os

import pytest

from worker.sandbox.confinement import Applied
from worker.sandbox.escape import REFUSALS, Ground, Outcome, Targets, Trial, try_out
from worker.sandbox.proof import judge

THROUGH = Outcome(got_through=True, refused=False, detail="connected")
REFUSED = Outcome(got_through=False, refused=True, detail="EPERM")
ODD = Outcome(got_through=False, refused=False, detail="ETIMEDOUT")
NOTHING = Applied([], [])
TARGETS = Targets(1, 2, "", 0, "/s", "\0s", "/f", "/f/f", "/f/n", "/bin/true", 1, 0, 0)
GROUND = Ground(TARGETS, "/scratch", "", "/scratch/link", "/scratch/brought", 3)


def trial(*, needed: bool) -> Trial:
    return Trial("way", lambda _: "out", (), needed=needed)


@pytest.mark.parametrize(
    ("outside", "inside", "needed", "tried", "refused", "proven"),
    [
        (THROUGH, REFUSED, True, True, True, True),
        (THROUGH, THROUGH, True, True, False, False),
        (THROUGH, ODD, True, True, False, False),  # the target went away: nothing was shown
        (REFUSED, REFUSED, True, False, False, False),  # there was nothing to take away, and a proof needs it
        (ODD, REFUSED, True, False, False, False),
        (THROUGH, REFUSED, False, True, True, True),
        (THROUGH, THROUGH, False, True, False, False),
        (THROUGH, ODD, False, True, False, False),
        (REFUSED, REFUSED, False, False, False, True),
        (ODD, REFUSED, False, False, False, True),
        (REFUSED, THROUGH, False, True, False, False),  # what works inside got through, whatever it did before
        (REFUSED, THROUGH, True, True, False, False),
    ],
)
def test_one_attempt(outside: Outcome, inside: Outcome, needed: bool, tried: bool, refused: bool, proven: bool) -> None:
    certain = Trial("certain", lambda _: "out", (), needed=True)
    proof = judge([certain, trial(needed=needed)], NOTHING, [THROUGH, outside], [REFUSED, inside])
    attempt = proof.attempts[1]
    assert (attempt.tried, attempt.refused, proof.proven) == (tried, refused, proven)
    assert attempt.outside == outside.detail
    if not tried:
        assert attempt.detail == f"could not be tried, outside: {outside.detail}"
    elif inside is ODD:
        assert attempt.detail == "no layer's answer: ETIMEDOUT"
    else:
        assert attempt.detail == inside.detail


def test_layers_neither_prove_nor_disprove() -> None:
    each = [trial(needed=True)]
    assert judge(each, Applied([], ["seccomp: switched off"]), [THROUGH], [REFUSED]).proven
    assert not judge(each, Applied(["seccomp"], []), [THROUGH], [THROUGH]).proven


def test_no_attempt_is_no_proof() -> None:
    assert not judge([], NOTHING, [], []).proven
    assert not judge([trial(needed=False)], NOTHING, [THROUGH], [REFUSED]).proven


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_layer_s_error_is_a_refusal(code: int) -> None:
    assert try_out(Trial("way", lambda _: _raise(code), ()), GROUND).refused


@pytest.mark.parametrize(
    "code", [errno.ENOENT, errno.ESRCH, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENOSYS, errno.EINVAL, errno.ENODEV]
)
def test_a_missing_target_is_none(code: int) -> None:
    outcome = try_out(Trial("way", lambda _: _raise(code), ()), GROUND)
    assert not outcome.refused
    assert not outcome.got_through


def _raise(code: int) -> str:
    raise OSError(code, os.strerror(code))
