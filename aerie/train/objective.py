"""Training-time test and the loss (arXiv 2503.01840, section 3.1), on supervised rows only.

Step 0 reads the target's aux states; step i reads the output of step i-1 at the same row, with
the token i further on. A row of step i attends to step 0 of its own and earlier positions, and to
its own steps 1 to i: what serving sees when i draft tokens stand behind verified ones. Rows that
carry no label are computed where they serve as keys, and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from aerie.train.model import Draft
from aerie.train.packing import Pack


@dataclass(frozen=True)
class Step:
    """Logits [a, K] of one step, and the a supervised rows (indices) that they are of."""

    number: int
    rows: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Result:
    """`loss` is a scalar with a graph; `losses`, `correct` and `counts` are [steps], detached."""

    loss: Tensor
    losses: Tensor
    correct: Tensor
    counts: Tensor


def unroll(draft: Draft, embedding: Tensor, pack: Pack, steps: int) -> Iterator[Step]:
    """Yield the steps of training-time test. `embedding` is the target's, [V, H]."""
    hidden = draft.reduce(pack.aux)
    fused = draft.fuse(embedding[pack.token_ids], hidden)
    keys, values = draft.keys_values(fused, pack.positions)
    at = pack.supervised
    visible = (pack.sample_of_row[at, None] == pack.sample_of_row) & (
        pack.positions[at, None] >= pack.positions
    )
    hidden, fused = hidden[at], fused[at]
    rows = previous = pack.active(0)
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        positions = pack.positions[at[rows]] + step
        if step:
            # Rows only ever leave: those of a step are a subset of the step before.
            keep = torch.searchsorted(previous, rows)
            hidden = hidden[keep]
            fused = draft.fuse(embedding[pack.labels[rows + step - 1]], hidden)
            own = [(k[keep], v[keep]) for k, v in own]
            own.append(draft.keys_values(fused, positions))
        queries = draft.queries(fused, positions)
        attended = attend(queries, keys, values, visible[rows], own)
        hidden, previous = draft.finish(hidden, attended), rows
        yield Step(step, rows, draft.logits(hidden))
        rows = pack.active(step + 1)
        if len(rows) == 0:
            return


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    own: list[tuple[Tensor, Tensor]],
) -> Tensor:
    """Attention of [a, heads, d] over shared keys [n, kv, d] where `visible` [a, n] (None: all),
    and over each row's own keys and values [a, kv, d]; one softmax over both. Returns
    [a, heads, d].
    """
    count, (_, heads, width) = len(keys), queries.shape
    grouped = queries.unflatten(1, (keys.shape[1], heads // keys.shape[1])) * width**-0.5
    shared = torch.einsum("akgd,nkd->kgan", grouped, keys)
    if visible is not None:
        shared = shared.masked_fill(~visible, float("-inf"))
    single = [torch.einsum("akgd,akd->kga", grouped, k).unsqueeze(-1) for k, _ in own]
    scores = torch.cat((shared, *single), dim=-1)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    shares = wide.softmax(-1).to(values.dtype)
    out = torch.einsum("kgan,nkd->akgd", shares[..., :count], values)
    for number, (_, v) in enumerate(own):
        out = out + torch.einsum("kga,akd->akgd", shares[..., count + number], v)
    return out.flatten(1, 2)


def teacher_shares(head: Tensor, pack: Pack) -> Tensor:
    """The target's own distribution over the map, [s, K], recomputed from `last`.

    `head` [K, H] are the rows of the target's head that the map keeps.
    """
    scores = pack.teacher.to(head.dtype) @ head.t()
    return (scores if scores.dtype == torch.float64 else scores.float()).softmax(-1)


def objective(
    draft: Draft,
    embedding: Tensor,
    head: Tensor,
    draft_ids: Tensor,
    pack: Pack,
    steps: int,
    decay: float,
) -> Result:
    """The loss of one pack: per step the soft-target cross-entropy over the map, its mean over the
    step's supervised rows, weighted decay^step and summed.

    `draft_ids` int64 [V] maps a target id to its draft id, or -1: a label outside the map is a
    miss, as it is in serving. The loss needs no such case: the teacher lives on the map.
    """
    with torch.no_grad():
        teacher = teacher_shares(head, pack)
    loss = teacher.new_zeros(())
    losses, correct, counts = (torch.zeros(steps, dtype=torch.float64) for _ in range(3))
    for step in unroll(draft, embedding, pack, steps):
        logits = step.logits if step.logits.dtype == torch.float64 else step.logits.float()
        shifted = step.rows + step.number
        entropy = -(teacher[shifted] * logits.log_softmax(-1)).sum(-1).mean()
        loss = loss + decay**step.number * entropy
        hits = logits.argmax(-1) == draft_ids[pack.labels[shifted]]
        losses[step.number] = entropy.item()
        correct[step.number] = hits.sum().item()
        counts[step.number] = len(step.rows)
    return Result(loss, losses, correct, counts)
