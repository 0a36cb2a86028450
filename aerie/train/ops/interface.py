"""The operations of a training step beside its matrix products, in two implementations.

`plain` is torch on any device and dtype: the CPU's, and what the other is tested against. `fused`
is Triton and PyTorch's FlashAttention, for CUDA in bfloat16. Both compute the same mathematics;
whatever they reduce, they reduce in float32 (float64 for float64 inputs).
"""

from typing import Protocol

import torch
from torch import Tensor

from aerie.train.packing import Segments


class Operations(Protocol):
    """Shapes: n, s rows; H hidden; d head width; K map. Names ending in `_` write in place."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
        """Root-mean-square norm of [n, H] into `out`, which is returned."""

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None,
        out: Tensor,
    ) -> Tensor:  # fmt: skip
        """Put the gradient for x [n, H], plus `residual`, into `out`; returns the weight's, wide
        [H].
        """

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
        """Rotate [n, heads, d] by angles [n, d/2], or back."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of [n, 2I]: [n, I]."""

    def gate_backward_(self, gate_up: Tensor, grad: Tensor, activated: Tensor) -> None:
        """Put the gradient of `gate_up` in its place, and what `gate` had given in `activated`."""

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, H] as e4m3, contiguous, and the scale of each row [n, 1] that it was divided by."""

    def attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, own: Tensor, segments: Segments,
        attended: Tensor, log_total: Tensor,
    ) -> None:  # fmt: skip
        """Attention of supervised rows, one softmax over the keys of their sample up to their own
        position and over their own later steps.

        queries [s, heads, d]; keys and values [n, kv, d]; own [i, s, 2, kv, d]. Fills
        `attended` [s, heads, d] and the softmax's log-sum-exp `log_total`, wide [heads, s].
        """

    def attention_backward(
        self, grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, own: Tensor,
        attended: Tensor, log_total: Tensor, segments: Segments, delta: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of queries, keys and values; fills delta [heads, s] = sum(grad * attended).

        Those of `own` are `own_backward`'s, which needs all later steps' queries.
        """

    def own_backward(
        self, grads: Tensor, queries: Tensor, own: Tensor, log_totals: Tensor, deltas: Tensor
    ) -> Tensor:
        """Gradient [s, 2, kv, d] of the keys and values `own` [s, 2, kv, d] that one step made.

        From all m steps that saw them: grads and queries [m, s, heads, d], log_totals and deltas
        [m, heads, s].
        """

    def shifted_sum(self, grads: Tensor) -> Tensor:
        """[s, N], row r of it the sum of rows r-i of step i, for `grads` [i-1, s, N], i >= 1."""

    def cross_entropy_(
        self, logits: Tensor, shares: Tensor, rows: Tensor, weights: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Soft-target cross-entropy of [c, K] against rows `rows` [c] of `shares` [s, K].

        Puts `weights` [c] times its gradient into `logits`; a row of weight 0 gives 0 everywhere.
        Returns the unweighted losses, wide [c], and whether the best logit is at `labels`, [c].
        """

    def adamw_(
        self, master: Tensor, first: Tensor, second: Tensor, gradient: Tensor, products: Tensor,
        scalars: Tensor, rate: float, betas: tuple[float, float], decay: float,
    ) -> None:  # fmt: skip
        """One AdamW step on flat tensors: float32 weights and moments, and the products' copy.

        `scalars` float32 [3]: the factor of the gradient, the number of this step, and 1 to take
        it or 0 to leave everything as it is. Nothing is read back to the host.
        """


def operations(like: Tensor) -> Operations:
    """The implementation for the device and dtype of `like`; it is loaded here."""
    if like.device.type == "cuda" and like.dtype == torch.bfloat16:
        from aerie.train.ops import fused

        return fused
    from aerie.train.ops import plain

    return plain
