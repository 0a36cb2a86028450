"""The draft gate's self-test: a draft that cannot learn one sample by heart is wired wrongly."""

from collections.abc import Callable

from aerie.errors import GateError

_STEPS = 60
_ENOUGH = 0.5


def overfit_one(excess: Callable[[], float]) -> None:
    """Train on one sample until the excess loss has halved.

    Each call of `excess` gives the cross-entropy of step 0 above the teacher's own entropy, which
    is zero when the draft says exactly what the target says, and then takes one training step.

    Raises:
        GateError: it has not halved after 60 steps.
    """
    first = last = excess()
    for _ in range(_STEPS):
        last = excess()
        if last <= _ENOUGH * first:
            return
    raise GateError(
        "draft",
        "the draft cannot learn a single sample by heart",
        saw=f"a loss above the teacher's of {first:.3f}, and {last:.3f} after {_STEPS} steps",
        expected=f"at most {_ENOUGH * first:.3f}",
        remedy="ids, states and mask of the sample do not fit together: run `make verify`, then "
        "look at docs/troubleshooting.md under `overfit-one`",
    )
