"""Training-time test and the loss (arXiv 2503.01840, section 3.1), on supervised rows only.

Step 0 reads the target's aux states; step i reads the output of step i-1 at the same row, with
the token i further on. A row of step i attends to step 0 of its own and earlier positions, and to
its own steps 1 to i: what serving sees when i draft tokens stand behind verified ones. Rows that
carry no label serve as keys and are computed no further.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.train.model import Draft
from aerie.train.packing import Pack


@dataclass(frozen=True)
class Result:
    """`loss` is a scalar with a graph; `losses`, `correct` and `counts` are [steps], detached."""

    loss: Tensor
    losses: Tensor
    correct: Tensor
    counts: Tensor


def unroll(draft: Draft, embedding: Tensor, pack: Pack, steps: int) -> Iterator[Tensor]:
    """Yield the logits [s, K] of each step. `embedding` is the target's, [V, H].

    Rows that are not active at a step are computed all the same, so that shapes stay: they see no
    other row, and no one sees them.
    """
    hidden = draft.reduce(pack.aux)
    fused = draft.fuse(embedding[pack.token_ids], hidden)
    keys, values = draft.keys_values(fused, pack.positions)
    at = pack.supervised
    visible = (pack.sample_of_row[at, None] == pack.sample_of_row) & (
        pack.positions[at, None] >= pack.positions
    )
    hidden, fused = hidden[at], fused[at]
    own: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        positions = pack.positions[at] + step
        if step:
            fused = draft.fuse(embedding[ahead(pack.labels, step - 1)], hidden)
            own.append(draft.keys_values(fused, positions))
        attended = attend(draft.queries(fused, positions), keys, values, visible, own)
        hidden = draft.finish(hidden, attended)
        yield draft.logits(hidden)


def ahead(column: Tensor, step: int) -> Tensor:
    """`column` [s, ...] of the supervised rows, read `step` rows further on."""
    if step == 0:
        return column
    rows = torch.arange(len(column), device=column.device)
    return column[(rows + step).clamp(max=len(column) - 1)]


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
    for step, scores in enumerate(unroll(draft, embedding, pack, steps)):
        logits = scores if scores.dtype == torch.float64 else scores.float()
        active = pack.active(step)
        count = int(active.sum())
        # -sum p log q, with sum p = 1: the logarithms of all K are never held.
        entropy = logits.logsumexp(-1) - torch.linalg.vecdot(ahead(teacher, step), logits)
        mean = torch.where(active, entropy, 0).sum() / max(count, 1)
        loss = loss + decay**step * mean
        hits = active & (logits.argmax(-1) == draft_ids[ahead(pack.labels, step)])
        losses[step], correct[step], counts[step] = mean.item(), int(hits.sum()), count
    return Result(loss, losses, correct, counts)
