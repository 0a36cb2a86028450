"""The operations in plain torch; `interface` says what each does."""

import torch
from torch import Tensor
from torch.nn import functional as F

from aerie.contracts.codecs import E4M3_MAX
from aerie.train.packing import Segments

_EPS = 1e-8
LARGEST = E4M3_MAX
# A row of less than this is as good as zero.
SMALLEST = 1e-30


def wide(x: Tensor) -> Tensor:
    """`x` in the precision of reductions."""
    return x if x.dtype == torch.float64 else x.float()


def norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    return out.copy_(_scaled(x, eps)[0] * weight)


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, out: Tensor
) -> Tensor:
    scaled, inverse = _scaled(x, eps)
    grad = wide(grad)
    weight_grad = (grad * scaled).sum(0)
    inner = grad * weight
    result = inverse * (inner - scaled * (inner * scaled).mean(-1, keepdim=True))
    out.copy_(result if residual is None else result + residual)
    return weight_grad


def _scaled(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = wide(x)
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * inverse, inverse


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
    cos, sin = cos[:, None], -sin[:, None] if inverse else sin[:, None]
    first, second = x.chunk(2, dim=-1)
    rotated = first * cos - second * sin
    second.copy_(second * cos + first * sin)
    first.copy_(rotated)


def gate(gate_up: Tensor) -> Tensor:
    gated, up = gate_up.chunk(2, dim=-1)
    activated: Tensor = F.silu(gated) * up
    return activated


def gate_backward_(gate_up: Tensor, grad: Tensor, activated: Tensor) -> None:
    gated, up = gate_up.chunk(2, dim=-1)
    share = torch.sigmoid(gated)
    silu = gated * share
    torch.mul(silu, up, out=activated)
    gated.copy_(grad * up * share * (1 + gated - silu))
    up.copy_(grad * silu)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.float()
    scales = rows.abs().amax(1, keepdim=True).clamp_(min=SMALLEST) / LARGEST
    return (rows / scales).to(torch.float8_e4m3fn), scales


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, own: Tensor, segments: Segments,
    attended: Tensor, log_total: Tensor,
) -> None:  # fmt: skip
    scores = _scores(queries, keys, segments)
    singles = _own_scores(queries, own)
    totals = scores.logsumexp(-1).logaddexp(singles.logsumexp(-1))
    log_total.copy_(totals.flatten(0, 1))
    total = torch.where(totals.isneginf(), 0, totals).unsqueeze(-1)
    shares = (scores - total).exp_().to(values.dtype)
    own_shares = (singles - total).exp_().to(values.dtype)
    out = torch.einsum("kgan,nkd->akgd", shares, values)
    out = out + torch.einsum("kgai,iakd->akgd", own_shares, own[:, :, 1])
    attended.copy_(out.flatten(1, 2))


def attention_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, own: Tensor,
    attended: Tensor, log_total: Tensor, segments: Segments, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scale = queries.shape[-1] ** -0.5
    delta.copy_((wide(grad) * attended).sum(-1).t())
    grouped, total, deltas = (_grouped(x, keys.shape[1]) for x in (grad, log_total.t(), delta.t()))
    total, deltas = (x.permute(1, 2, 0).unsqueeze(-1) for x in (total, deltas))
    total = torch.where(total.isneginf(), 0, total)
    shares = (_scores(queries, keys, segments) - total).exp_()
    scores_grad = shares * (wide(torch.einsum("akgd,nkd->kgan", grouped, values)) - deltas)
    values_grad = torch.einsum("kgan,akgd->nkd", shares.to(values.dtype), grouped)
    scores_grad = scores_grad.mul_(scale).to(keys.dtype)
    keys_grad = torch.einsum("kgan,akgd->nkd", scores_grad, _grouped(queries, keys.shape[1]))
    queries_grad = torch.einsum("kgan,nkd->akgd", scores_grad, keys)
    if len(own):
        own_shares = (_own_scores(queries, own) - total).exp_()
        reach = wide(torch.einsum("akgd,iakd->kgai", grouped, own[:, :, 1]))
        own_grad = (own_shares * (reach - deltas)).mul_(scale).to(keys.dtype)
        queries_grad = queries_grad + torch.einsum("kgai,iakd->akgd", own_grad, own[:, :, 0])
    return queries_grad.flatten(1, 2), keys_grad, values_grad


def own_backward(
    grads: Tensor, queries: Tensor, own: Tensor, log_totals: Tensor, deltas: Tensor
) -> Tensor:
    scale, kv = queries.shape[-1] ** -0.5, own.shape[2]
    grads, queries = (x.unflatten(2, (kv, -1)) for x in (grads, queries))
    totals, deltas = (x.transpose(1, 2).unflatten(2, (kv, -1)) for x in (log_totals, deltas))
    keys, values = own[:, 0], own[:, 1]
    shares = (wide(torch.einsum("makgd,akd->makg", queries, keys)) * scale - totals).exp_()
    reach = wide(torch.einsum("makgd,akd->makg", grads, values))
    scores_grad = (shares * (reach - deltas) * scale).to(keys.dtype)
    keys_grad = torch.einsum("makg,makgd->akd", scores_grad, queries)
    values_grad = torch.einsum("makg,makgd->akd", shares.to(keys.dtype), grads)
    return torch.stack((keys_grad, values_grad), dim=1)


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    grouped: Tensor = x.unflatten(1, (kv_heads, -1))
    return grouped


def _scores(queries: Tensor, keys: Tensor, segments: Segments) -> Tensor:
    """Scores [kv, g, s, n], minus infinity where a row may not look."""
    scale = queries.shape[-1] ** -0.5
    scores = torch.einsum("akgd,nkd->kgan", _grouped(queries, keys.shape[1]), keys)
    return wide(scores).mul(scale).masked_fill_(~segments.visible, float("-inf"))


def _own_scores(queries: Tensor, own: Tensor) -> Tensor:
    """Scores [kv, g, s, i] of the rows' own later steps."""
    grouped = _grouped(queries, own.shape[3])
    scores = wide(torch.einsum("akgd,iakd->kgai", grouped, own[:, :, 0]))
    return scores.mul(queries.shape[-1] ** -0.5)


def shifted_sum(grads: Tensor) -> Tensor:
    total = wide(torch.zeros_like(grads[0]))
    for step, grad in enumerate(grads, start=1):
        total[step:] += grad[:-step]
    return total.to(grads.dtype)


def cross_entropy_(
    logits: Tensor, shares: Tensor, rows: Tensor, weights: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    scores, teacher = wide(logits), shares[rows]
    top, best = scores.max(-1)
    draft = scores.softmax(-1)
    # -sum p log q, with sum p = 1: the logarithms of all K are never held. The best share is at
    # least 1 / K, so its logarithm is exact.
    log_total = top - draft.gather(-1, best[:, None]).squeeze(-1).log()
    losses = log_total - torch.linalg.vecdot(teacher, scores)
    active = weights != 0
    logits.copy_(draft.sub_(teacher).mul_(weights[:, None]))
    return torch.where(active, losses, 0), active & (best == labels)


def adamw_(
    master: Tensor, first: Tensor, second: Tensor, gradient: Tensor, products: Tensor,
    scalars: Tensor, rate: float, betas: tuple[float, float], decay: float,
) -> None:  # fmt: skip
    factor, number, taken = scalars
    # The fused kernel takes the step's number as the one before, and undoes it when it skips.
    torch._fused_adamw_(
        [master], [gradient.to(master.dtype)], [first], [second], [], [number],
        amsgrad=False, lr=rate, beta1=betas[0], beta2=betas[1], weight_decay=decay, eps=_EPS,
        maximize=False, grad_scale=1 / factor, found_inf=1 - taken,
    )  # fmt: skip
    if products.data_ptr() != master.data_ptr():
        products.copy_(master)
