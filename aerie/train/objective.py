"""The loss of a pack and its gradient: the target's distribution against the draft's, per step.

Norm, head and loss run over the rows of all steps in chunks, each with its gradient at once, so
that logits of more than one chunk are never held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.contracts.teacher import decode
from aerie.errors import ContractError
from aerie.train.ops.interface import operations
from aerie.train.packing import Pack
from aerie.train.products import products_of
from aerie.train.tape import Tape
from aerie.train.unroll import backward, unroll
from aerie.train.weights import Matrices

_CHUNK = 8192
_CHUNK_MULTIPLE = 128


@dataclass(frozen=True)
class Frozen:
    """What the trainer reads and never changes: embedding [V, H], head rows of the map [K, H],
    and `draft_ids` int64 [V], the draft id of a target id or -1.
    """

    embedding: Tensor
    head: Tensor
    draft_ids: Tensor


@dataclass(frozen=True)
class Result:
    """`loss`, a scalar; `losses` and `correct` [steps]. All wide, on the device of the weights;
    reading one waits for it.
    """

    loss: Tensor
    losses: Tensor
    correct: Tensor

    def figures(self) -> Tensor:
        """All of them in one tensor, float32 [1 + 2 steps]: they add up over packs."""
        return torch.cat((self.loss[None], self.losses, self.correct)).float()


def objective(
    weights: Matrices,
    gradient: Matrices,
    frozen: Frozen,
    pack: Pack,
    steps: int,
    decay: float,
    counts: Sequence[float] | None = None,
    recompute: bool = False,
    fp8: bool = False,
) -> Result:
    """The loss of one pack, and its gradient into `gradient`: per step the soft-target
    cross-entropy over the map, its mean over the step's supervised rows, weighted decay^step and
    summed.

    With `recompute` the MLP is computed again in the backward pass, which takes less memory. With
    `fp8` the layer's products with its weights are in fp8 (`products.Float8`).
    `counts` are those rows over all packs of an optimizer step; default: this pack's. A label
    outside the map is a miss, as it is in serving. The loss needs no such case: the teacher lives
    on the map.
    """
    counts = counts or [pack.count(step) for step in range(steps)]
    shares = teacher_shares(frozen, pack)
    products = products_of(weights, fp8)
    tape = unroll(weights, frozen.embedding, pack, steps, products, recompute)
    factors = torch.tensor(
        [decay**step / max(count, 1) for step, count in enumerate(counts)], dtype=shares.dtype
    ).to(shares.device, non_blocking=True)
    sums, correct, grads = _head(weights, gradient, frozen, tape, shares, factors)
    backward(weights, gradient, products, tape, grads)
    means = sums * factors.to(sums.dtype)
    scale = torch.tensor([decay**-step for step in range(steps)], dtype=sums.dtype)
    return Result(means.sum(), means * scale.to(means.device, non_blocking=True), correct)


def teacher_shares(frozen: Frozen, pack: Pack) -> Tensor:
    """The target's own distribution over the map, wide [s, K]: recomputed from `last`, or completed
    from the likeliest tokens that the states hold.
    """
    head = frozen.head
    wide = torch.float64 if head.dtype == torch.float64 else torch.float32
    if pack.teacher is not None:
        scores = pack.teacher.to(head.dtype) @ head.t()
        return scores.softmax(-1, dtype=wide)
    if pack.top_ids is None or pack.top_logprobs is None or pack.tail is None:
        raise ContractError(
            "the states hold neither `last` nor what stands for it",
            remedy="run `make verify ARGS=--repair`, then the build again",
        )
    return decode(pack.top_ids, pack.top_logprobs, pack.tail, frozen.draft_ids, len(head), wide)


def logits_of(weights: Matrices, outputs: Tensor) -> Tensor:
    """Logits over the map [n, K] of the layer's outputs [n, H]."""
    ops, eps = operations(weights.norm_out), weights.config.norm_eps
    return ops.norm(outputs, weights.norm_out, eps, torch.empty_like(outputs)) @ weights.head.t()


def labels_ahead(pack: Pack, draft_ids: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each step and supervised row: where its label and teacher are among the supervised
    rows, the label's draft id, and whether the row is active. All [steps, s].
    """
    s = len(pack.labels)
    step = torch.arange(steps, device=pack.labels.device)[:, None]
    source = (torch.arange(s, device=pack.labels.device) + step).clamp_(max=s - 1)
    return source, draft_ids[pack.labels][source], pack.remaining >= step


def _head(
    weights: Matrices,
    gradient: Matrices,
    frozen: Frozen,
    tape: Tape,
    shares: Tensor,
    factors: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of losses and correct rows, [steps], and the gradient of the outputs [steps, s, H]."""
    ops, eps = operations(weights.norm_out), weights.config.norm_eps
    source, labels, active = labels_ahead(tape.pack, frozen.draft_ids, tape.steps)
    row_weights = (active * factors[:, None]).flatten()
    outputs = tape.outputs.flatten(0, 1)
    grads = torch.empty_like(outputs)
    norm = torch.zeros_like(weights.norm_out, dtype=shares.dtype)
    losses, hits = [], []
    weights.acquire("head")
    gradient.acquire("head")
    for number, chunk in enumerate(_chunks(len(outputs))):
        rows = outputs[chunk]
        normed = ops.norm(rows, weights.norm_out, eps, torch.empty_like(rows))
        logits = normed @ weights.head.t()
        loss, hit = ops.cross_entropy_(
            logits, shares, source.flatten()[chunk], row_weights[chunk], labels.flatten()[chunk]
        )
        losses.append(loss)
        hits.append(hit)
        # Each chunk adds to the first one's product.
        torch.addmm(gradient.head, logits.t(), normed, beta=1 if number else 0, out=gradient.head)
        norm += ops.norm_backward(
            logits @ weights.head, rows, weights.norm_out, eps, None, grads[chunk]
        )
    gradient.norm_out.copy_(norm)
    weights.release("head")
    gradient.release("head")
    sums = torch.cat(losses).unflatten(0, (tape.steps, -1)).sum(1)
    correct = torch.cat(hits).unflatten(0, (tape.steps, -1)).sum(1)
    return sums, correct, grads.view_as(tape.outputs)


def _chunks(rows: int) -> list[slice]:
    """Equal parts of at most 8,192 rows, so that no product is left with a few."""
    parts = -(-rows // _CHUNK)
    size = -(-rows // (parts * _CHUNK_MULTIPLE)) * _CHUNK_MULTIPLE
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
