"""How a states file stores hidden states: `bf16` as they are, `fp8` with a scale for each block,
`teacher` without the final state: the target's likeliest tokens stand for it (`teacher.py`).

A block is one state: the H values of one layer at one token. What is lost is the rounding to e4m3
(three bits of mantissa: 1 in 16 at most, 2.7 % of the norm) and to bf16 when it is decoded.
Format: https://arxiv.org/abs/2209.05433, E4M3 without infinities.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Codec = Literal["bf16", "fp8", "teacher"]
Rounding = Literal["bf16", "fp8"]
E4M3_MAX = 448.0
# So many float32 fit into a core's cache, where the steps of encoding are several times faster.
_CACHED_VALUES = 1 << 17
# A block of zeros has a scale too.
_LEAST_SCALE = 2.0**-100


@dataclass(frozen=True)
class Teacher:
    """The codec `teacher`: how many tokens of a distribution are kept, and how `aux` is stored."""

    k: int = 64
    aux: Rounding = "fp8"


def encode(states: "torch.Tensor", width: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """fp8 e4m3 [t, n*width] and scales float32 [t, n] of bf16 `states` [t, n*width], on the CPU.

    The largest value of a block becomes the largest of e4m3, whose normal range reaches down to 1
    in 28,672 of that: one dimension may be thousands of times the others.
    """
    import torch

    blocks = states.unflatten(1, (-1, width))
    scales = _scales(blocks)
    factors = 1 / scales.unsqueeze(2)
    values = torch.empty(states.shape, dtype=torch.float8_e4m3fn)
    rows = max(1, _CACHED_VALUES // states.shape[1])
    scaled = torch.empty((rows, *blocks.shape[1:]))
    for part in (slice(start, start + rows) for start in range(0, len(states), rows)):
        block = blocks[part]
        exact = scaled[: len(block)].copy_(block).mul_(factors[part])
        values[part] = exact.flatten(1)
    return values, scales


def _scales(blocks: "torch.Tensor") -> "torch.Tensor":
    """The scale of each block, float32 [t, n], of bf16 [t, n, width].

    It is a bf16 itself, so that a GPU decodes in bf16.
    """
    import torch

    # Numbers of one sign are in the order of their bits, and of integers the largest is found
    # several times faster: signed ones give the largest above zero, unsigned ones that below.
    bits = blocks.view(torch.int16).numpy()
    below = (bits.view(np.uint16).max(2) & 0x7FFF).astype(np.int16)
    largest = torch.from_numpy(np.maximum(bits.max(2), below)).view(torch.bfloat16).float()
    return (largest / E4M3_MAX).clamp(min=_LEAST_SCALE).bfloat16().float()


def decode(values: "torch.Tensor", scales: "torch.Tensor") -> "torch.Tensor":
    """bf16 [t, n*width] from what `encode` gave, on the device where it is."""
    import torch

    blocks: torch.Tensor = values.to(torch.bfloat16).unflatten(1, (scales.shape[1], -1))
    return blocks.mul(scales.to(torch.bfloat16).unsqueeze(2)).flatten(1)
