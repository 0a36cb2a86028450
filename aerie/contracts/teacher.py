"""The codec `teacher`: the target's likeliest next tokens in the place of its final state.

They are of the whole vocabulary, so that another map asks for no other states. For each row there
are the k likeliest ids, their log-probabilities in float16 (a share p loses p*|log p|/2048 at most)
and the mass of all other ids, the tail.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Logits that are held at once, and rows of a head that are widened at once.
_LOGITS_BYTES = 1 << 28
_HEAD_ROWS = 16384
# Less than any share counts: a distribution over the map adds up to more than zero.
_LEAST_SHARE = 1e-30


def encode(
    last: "torch.Tensor", head: "torch.Tensor", k: int
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """ids int32 [t, k], log-probabilities float16 [t, k], likeliest first, and tail float32 [t, 1].

    `last` is bf16 [t, H], `head` [V, H] with V >= k. Computed in float32 where `head` is, and given
    on the CPU.
    """
    import torch

    ids = torch.empty(len(last), k, dtype=torch.int32)
    logprobs = torch.empty(len(last), k, dtype=torch.float16)
    tail = torch.empty(len(last), 1)
    rows = max(1, _LOGITS_BYTES // (4 * len(head)))
    for part in (slice(start, start + rows) for start in range(0, len(last), rows)):
        logits = _logits(last[part].to(head.device), head)
        top = logits.topk(k, dim=1)
        shares = top.values - logits.logsumexp(1, keepdim=True)
        ids[part], logprobs[part] = top.indices, shares
        tail[part] = (1 - shares.exp().sum(1, keepdim=True)).clamp_(min=0)
    return ids, logprobs, tail


def _logits(states: "torch.Tensor", head: "torch.Tensor") -> "torch.Tensor":
    """float32 [t, V]."""
    import torch

    if states.is_cuda and head.dtype == states.dtype:
        return torch.mm(states, head.t(), out_dtype=torch.float32)
    logits = torch.empty(len(states), len(head), device=states.device)
    wide = states.float()
    # In slices, since the head of a large target in float32 is gigabytes.
    for start in range(0, len(head), _HEAD_ROWS):
        rows = slice(start, start + _HEAD_ROWS)
        torch.mm(wide, head[rows].float().t(), out=logits[:, rows])
    return logits


def decode(
    ids: "torch.Tensor",
    logprobs: "torch.Tensor",
    tail: "torch.Tensor",
    draft_ids: "torch.Tensor",
    size: int,
    dtype: "torch.dtype",
) -> "torch.Tensor":
    """The distribution over a map, `dtype` [t, size], from what `encode` gave.

    `draft_ids` int64 [V] are the draft ids of target ids, or -1. Each id that was not kept has the
    mean share of those, tail / (V - k); what lies in the map is then made to add up to 1, as the
    softmax over the map's columns does. With m the kept mass and r the tail that lie in the map,
    taken or true, whichever is larger, the total variation from the exact distribution is at most
    r / (m + r), and that of the loss's gradient by the logits twice as much.
    """
    each = (tail.to(dtype) / max(len(draft_ids) - ids.shape[1], 1)).clamp_(min=_LEAST_SHARE)
    columns = draft_ids[ids.long()]
    excess = (logprobs.to(dtype).exp() - each) * (columns >= 0)
    # An id outside the map adds 0 to the first column; the order of sums makes no difference.
    shares = each.repeat(1, size).scatter_add_(1, columns.clamp_(min=0), excess)
    return shares.div_(shares.sum(1, keepdim=True))
