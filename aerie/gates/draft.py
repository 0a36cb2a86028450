"""The draft gate's self-test: a draft that cannot learn one sample by heart is wired wrongly."""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerie.errors import GateError

if TYPE_CHECKING:
    import torch

    from aerie.train.model import Draft

_STEPS = 60
_RATE = 2e-3
_ENOUGH = 0.5


def overfit_one(draft: "Draft", excess: "Callable[[Draft], torch.Tensor]") -> None:
    """Train a copy of `draft` on one sample until its excess loss has halved.

    `excess` gives the cross-entropy of step 0 above the teacher's own entropy, a scalar with a
    graph: zero when the draft says exactly what the target says.

    Raises:
        GateError: it has not halved after 60 steps.
    """
    import torch

    copied = copy.deepcopy(draft)
    optimizer = torch.optim.AdamW(copied.parameters(), lr=_RATE, weight_decay=0.0)
    first = last = excess(copied).item()
    for _ in range(_STEPS):
        loss = excess(copied)
        last = loss.item()
        if last <= _ENOUGH * first:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise GateError(
        "draft",
        "the draft cannot learn a single sample by heart",
        saw=f"a loss above the teacher's of {first:.3f}, and {last:.3f} after {_STEPS} steps",
        expected=f"at most {_ENOUGH * first:.3f}",
        remedy="ids, states and mask of the sample do not fit together: run `make verify`, then "
        "look at docs/troubleshooting.md under `overfit-one`",
    )
