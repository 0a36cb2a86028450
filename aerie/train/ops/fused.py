"""The operations on CUDA in bfloat16: Triton kernels, and PyTorch's FlashAttention for the shared
keys; `interface` says what each does.

Attention over the shared keys is causal and aligned to the end of each sample, which is what
FlashAttention's segments are. A row's own keys are few; they are merged by the log-sum-exp. Given
the merged output and log-sum-exp, FlashAttention's backward pass yields the shared part's exact
gradients (https://github.com/Dao-AILab/flash-attention; the merge: arXiv 2310.01889).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor

from aerie.train.ops import kernels
from aerie.train.ops.plain import LARGEST, SMALLEST
from aerie.train.packing import Segments

_EPS = 1e-8
_BLOCK = 1024
_TILE = 2048
_PROGRAMS = 264


def norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    block = triton.next_power_of_2(x.shape[1])
    kernels.norm[(len(x),)](x, weight, out, x.shape[1], eps, block=block, num_warps=8)
    return out


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, out: Tensor
) -> Tensor:
    rows, width = x.shape
    programs = min(rows, _PROGRAMS)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    kernels.norm_backward[(programs,)](
        grad, x, weight, grad if residual is None else residual, out, partial, rows, width, eps,
        has_residual=residual is not None, block=triton.next_power_of_2(width), num_warps=16,
    )  # fmt: skip
    return partial.sum(0)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
    rows, heads, width = x.shape
    block = max(_TILE // width, 1)
    kernels.rotate[(rows, triton.cdiv(heads, block))](
        x, cos, sin, x.stride(0), heads, -1.0 if inverse else 1.0, half=width // 2, block=block
    )


def gate(gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    kernels.gate[(rows, triton.cdiv(width, _BLOCK))](gate_up, out, width, block=_BLOCK)
    return out


def gate_backward_(gate_up: Tensor, grad: Tensor, activated: Tensor) -> None:
    rows, width = grad.shape
    kernels.gate_backward[(rows, triton.cdiv(width, _BLOCK))](
        gate_up, grad, activated, width, block=_BLOCK
    )


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    kernels.quantise[(rows,)](
        x, out, scales, x.stride(0), width, LARGEST, SMALLEST, block=4096, num_warps=8
    )
    return out, scales


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, own: Tensor, segments: Segments,
    attended: Tensor, log_total: Tensor,
) -> None:  # fmt: skip
    shared_attention(queries, keys, values, segments, attended, log_total)
    if len(own):
        kernels.merge_own[_grid(queries, keys)](
            queries, own, attended, log_total, queries.stride(0), own.stride(0), own.stride(1),
            len(own), len(queries), *_geometry(queries, keys),
        )  # fmt: skip


def attention_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, own: Tensor,
    attended: Tensor, log_total: Tensor, segments: Segments, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    out, keys_grad, values_grad = shared_attention_backward(
        grad, queries, keys, values, attended, log_total, segments
    )
    out = out.contiguous()
    if len(own):
        kernels.own_queries[_grid(queries, keys)](
            grad, queries, own, attended, log_total, out, delta, queries.stride(0), own.stride(0),
            own.stride(1), len(own), len(queries), *_geometry(queries, keys),
        )  # fmt: skip
    return out, keys_grad, values_grad


def shared_attention(
    queries: Tensor, keys: Tensor, values: Tensor, segments: Segments, attended: Tensor,
    log_total: Tensor,
) -> None:  # fmt: skip
    """FlashAttention over the shared keys; the log-sum-exp of a row that sees none is infinite."""
    out, total, *_ = torch.ops.aten._flash_attention_forward(
        queries, keys, values, segments.query_bounds, segments.key_bounds,
        segments.longest_queries, segments.longest_keys, 0.0, True, False,
    )  # fmt: skip
    attended.copy_(out)
    log_total.copy_(total)


def shared_attention_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, attended: Tensor,
    log_total: Tensor, segments: Segments,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients through the shared keys, from the merged output and log-sum-exp."""
    unused = torch.zeros(2, dtype=torch.uint64, device=grad.device)
    with _deterministic():
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
            grad, queries, keys, values, attended, log_total, segments.query_bounds,
            segments.key_bounds, segments.longest_queries, segments.longest_keys, 0.0, True,
            unused, unused,
        )  # fmt: skip
    return grads


def own_backward(
    grads: Tensor, queries: Tensor, own: Tensor, log_totals: Tensor, deltas: Tensor
) -> Tensor:
    out = torch.empty_like(own, memory_format=torch.contiguous_format)
    keys = own[:, 0]
    kernels.own_keys[_grid(queries[0], keys)](
        grads, queries, own, log_totals, deltas, out, queries.stride(0), queries.stride(1),
        own.stride(0), len(queries), len(own), *_geometry(queries[0], keys),
    )  # fmt: skip
    return out


def shifted_sum(grads: Tensor) -> Tensor:
    steps, rows, width = grads.shape
    out = torch.empty_like(grads[0])
    kernels.shifted_sum[(rows, triton.cdiv(width, _BLOCK))](
        grads, out, steps, rows, width, block=_BLOCK
    )
    return out


def cross_entropy_(
    logits: Tensor, shares: Tensor, rows: Tensor, weights: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    count, width = logits.shape
    losses = torch.empty(count, dtype=torch.float32, device=logits.device)
    hits = torch.empty(count, dtype=torch.int8, device=logits.device)
    kernels.cross_entropy[(count,)](
        logits, shares, rows, weights, labels, losses, hits, width, block=4096, num_warps=8
    )
    return losses, hits


def adamw_(
    master: Tensor, first: Tensor, second: Tensor, gradient: Tensor, products: Tensor,
    scalars: Tensor, rate: float, betas: tuple[float, float], decay: float,
) -> None:  # fmt: skip
    size = master.numel()
    kernels.adamw[(triton.cdiv(size, _BLOCK),)](
        master,
        first,
        second,
        gradient,
        products,
        scalars,
        size,
        rate,
        *betas,
        decay,
        _EPS,
        block=_BLOCK,
    )


def _grid(queries: Tensor, keys: Tensor) -> tuple[int, int]:
    return len(queries), triton.cdiv(keys.shape[1], _heads(keys))


def _heads(keys: Tensor) -> int:
    """Heads of one program: a tile of 2,048 numbers."""
    return min(max(_TILE // keys.shape[-1], 1), int(triton.next_power_of_2(keys.shape[-2])))


def _geometry(queries: Tensor, keys: Tensor) -> tuple[int, float, int, int, int]:
    """Heads of keys, scale, and the kernels' group, width and block."""
    heads, width = keys.shape[-2:]
    return heads, width**-0.5, queries.shape[1] // heads, width, _heads(keys)


@contextmanager
def _deterministic() -> Iterator[None]:
    """FlashAttention sums the queries' gradient in any order unless it is told not to, and a
    resumed run must end with the same bytes.
    """
    # Its attributes are made at run time.
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    fill = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill
