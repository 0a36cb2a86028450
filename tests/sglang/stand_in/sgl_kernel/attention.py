"""TEST DOUBLE of `decode_attention_cpu` and `extend_attention_cpu`: attention over a paged cache.

Each request is computed by itself in float32, so that its result depends neither on the batch nor
on how its tokens are split over passes. Softcaps, sinks, windows, cross-attention and trees are
refused.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")

_LIBRARY.define(
    "decode_attention_cpu(Tensor q, Tensor k_buffer, Tensor v_buffer, float k_scale, "
    "float v_scale, Tensor out, Tensor? k, Tensor? v, Tensor loc, Tensor attn_logits, "
    "Tensor table, Tensor requests, Tensor lengths, float scale, float cap, bool cross, "
    "int window, Tensor? encoder, Tensor? sinks) -> ()"
)
_LIBRARY.define(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor out, Tensor k_buffer, "
    "Tensor v_buffer, float k_scale, float v_scale, Tensor table, Tensor requests, "
    "Tensor lengths, Tensor fresh, Tensor starts, int longest, float scale, float cap, "
    "bool cross, int window, Tensor? encoder, Tensor? sinks, Tensor? tree, bool causal) -> ()"
)


def _decode(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _refuse(cap, cross, window, sinks)
    if k is not None and v is not None:
        k_buffer[loc] = k.to(k_buffer.dtype)
        v_buffer[loc] = v.to(v_buffer.dtype)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        slots = table[request, :length].long()
        result = _attend(q[row : row + 1], k_buffer[slots], v_buffer[slots], scale, 0)
        out[row] = result[0].to(out.dtype)


def _extend(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    table: Tensor,
    requests: Tensor,
    lengths: Tensor,
    fresh: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder: Tensor | None,
    sinks: Tensor | None,
    tree: Tensor | None,
    causal: bool,
) -> None:
    _refuse(cap, cross, window, sinks)
    if tree is not None or not causal:
        raise NotImplementedError("the stand-in attends causally, along chains")
    for request, length, count, start in zip(
        requests.tolist(), lengths.tolist(), fresh.tolist(), starts.tolist(), strict=True
    ):
        own = slice(start, start + count)
        seen = length - count
        # Rows of this pass may not be in the cache, and those of MLA without absorption are of
        # another shape there; rows before it always are.
        slots = table[request, : seen if k is not None else length].long()
        keys, values = k_buffer[slots], v_buffer[slots]
        if k is not None and v is not None:
            keys = torch.cat([keys, k[own].to(keys.dtype)]) if seen else k[own]
            values = torch.cat([values, v[own].to(values.dtype)]) if seen else v[own]
        out[own] = _attend(q[own], keys, values, scale, seen).to(out.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: int) -> Tensor:
    """Attention of q [t, heads, d] over k [s, kv, d] and v [s, kv, e]: [t, heads, e]."""
    mask = None
    if len(q) > 1:
        positions = torch.arange(len(q))[:, None] + seen
        mask = torch.arange(len(k))[None] <= positions
    result = scaled_dot_product_attention(
        q.transpose(0, 1).float(),
        k.transpose(0, 1).float(),
        v.transpose(0, 1).float(),
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return result.transpose(0, 1)


def _refuse(cap: float, cross: bool, window: int, sinks: Tensor | None) -> None:
    if cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError("the stand-in knows plain attention only")


_LIBRARY.impl("decode_attention_cpu", _decode, "CompositeExplicitAutograd")
_LIBRARY.impl("extend_attention_cpu", _extend, "CompositeExplicitAutograd")
