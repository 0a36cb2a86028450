"""The states gate: what the engine captured is whole, of the right layers and of this target."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerie.contracts.layers import Layers
from aerie.engines.base import Captured
from aerie.errors import GateError

if TYPE_CHECKING:
    import torch

PROBE_SHARE = 0.9
_HEAD_ROWS = 16384
# Of a bfloat16's 16 bits.
_MAGNITUDE, _INFINITY = 0x7FFF, 0x7F80
_FINAL_ONLY = (
    "the engine sent the final state alone, which is what a server started with "
    "`--speculative-algorithm EAGLE` does: trained or served so, the draft's fc is skipped in "
    "silence; start it with `--speculative-algorithm EAGLE3`"
)


def check_batch(
    captured: Sequence[Captured],
    batch: Sequence[Sequence[int]],
    layers: Layers,
    hidden_size: int,
) -> None:
    """Check the states of one batch of token ids.

    Raises:
        GateError: a sequence or a row is missing, a width is not that of the layers, a value is
            not finite, or a row is all zero in one layer.
    """
    if len(captured) != len(batch):
        raise GateError(
            "states",
            "the engine lost sequences of a batch",
            saw=len(captured),
            expected=len(batch),
            remedy="look at the engine's log; HTTP return_hidden_states is known to lose rows",
        )
    for states, ids in zip(captured, batch, strict=True):
        _check_shapes(states, len(ids), layers, hidden_size)
        _check_values(states, layers, hidden_size)


def _check_shapes(states: Captured, tokens: int, layers: Layers, hidden_size: int) -> None:
    rows = (len(states.aux), len(states.last))
    if rows != (tokens, tokens):
        raise GateError(
            "states",
            "rows of aux and last are not the tokens of the sequence",
            saw=rows,
            expected=tokens,
            remedy="turn off prefix caching and chunking in the engine's capture",
        )
    wanted = len(layers.hf_hidden_states) * hidden_size
    width = states.aux.shape[-1]
    if width != wanted:
        raise GateError(
            "states",
            "aux does not hold the wanted layers",
            saw=f"width {width}",
            expected=f"{wanted}: {len(layers.hf_hidden_states)} layers of {hidden_size}",
            remedy=_FINAL_ONLY
            if width == hidden_size
            else f"capture the layers {list(layers.hf_hidden_states)} of output_hidden_states",
        )
    if states.last.shape[-1] != hidden_size:
        raise GateError(
            "states",
            "last is not one final state",
            saw=f"width {states.last.shape[-1]}",
            expected=hidden_size,
            remedy="see docs/states.md",
        )


def _check_values(states: Captured, layers: Layers, hidden_size: int) -> None:
    import torch

    names = [*(f"layer {layer}" for layer in layers.hf_hidden_states), "the final state"]
    parts = (*states.aux.unflatten(-1, (-1, hidden_size)).unbind(-2), states.last)
    for name, layer in zip(names, parts, strict=True):
        # The bits of a bfloat16 but its sign are in the order of its size: one pass over terabytes.
        largest = layer.view(torch.int16).bitwise_and(_MAGNITUDE).amax(-1)
        bad = largest >= _INFINITY
        if bad.any():
            raise GateError(
                "states",
                f"{name} is not finite",
                saw=f"{int(bad.sum())} of {len(bad)} rows, the first at {int(bad.int().argmax())}",
                remedy="the target overflows in this precision: run it in bfloat16 or float32",
            )
        zero = largest == 0
        if zero.any():
            raise GateError(
                "states",
                f"{name} has rows of zeros",
                saw=f"{int(zero.sum())} of {len(zero)} rows, "
                f"the first at {int(zero.int().argmax())}",
                remedy="the engine did not fill these rows: look at its log, then run again",
            )


def probe_share(head: "torch.Tensor", last: "torch.Tensor", next_ids: "torch.Tensor") -> float:
    """Share of the rows of `last` [n, H] whose best token under `head` [V, H] is `next_ids` [n]."""
    import torch

    best = torch.full((len(last),), -torch.inf)
    chosen = torch.zeros(len(last), dtype=torch.long)
    rows = last.float()
    # In slices, since the head of a large target in float32 is gigabytes.
    for start in range(0, len(head), _HEAD_ROWS):
        top = (rows @ head[start : start + _HEAD_ROWS].float().T).max(dim=-1)
        better = top.values > best
        best = torch.where(better, top.values, best)
        chosen = torch.where(better, top.indices + start, chosen)
    return float((chosen == next_ids).float().mean())


def check_probe(
    head: "torch.Tensor", last: "torch.Tensor", next_ids: "torch.Tensor", where: str
) -> float:
    """Check that greedy answers follow from the captured final states; return the share that do.

    `head` is [V, H], `last` [n, H] and `next_ids` int [n], what the target answered after each
    row. A few answers differ for good reason, since a capture and a generation round differently;
    of a short probe, as many more are forgiven as chance explains.

    Raises:
        GateError: too few of the tokens are reproduced.
    """
    share = probe_share(head, last, next_ids)
    deviation = math.sqrt(PROBE_SHARE * (1 - PROBE_SHARE) / len(last))
    needed = PROBE_SHARE - 3 * deviation
    if share < needed:
        raise GateError(
            "states",
            f"{where}: argmax(lm_head(last)) does not reproduce the greedy answers",
            saw=f"{share:.1%} of {len(last)} tokens",
            expected=f"at least {PROBE_SHARE:.0%}, or {needed:.1%} in so short a probe",
            remedy="likely causes in order: last was captured before the final norm; rows are "
            "shifted by one; the engine runs another revision than the one that answered; the "
            "answers were sampled",
        )
    return share
