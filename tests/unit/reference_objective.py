"""The EAGLE-3 objective written out row by row, unpacked and unoptimised, to be read against the
paper (arXiv 2503.01840, section 3.1). The trainer must equal it; nothing else uses it.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from aerie.contracts.states import Sample
from aerie.train.model import Draft, RMSNorm


def reference_loss(
    draft: Draft,
    embedding: Tensor,
    head: Tensor,
    samples: Sequence[Sample],
    steps: int,
    decay: float,
    shift: int = 0,
) -> Tensor:
    """The loss of all samples as one batch. `shift` spoils the labels, for a negative control."""
    sums, counts = [torch.zeros((), dtype=embedding.dtype) for _ in range(steps)], [0] * steps
    for sample in samples:
        for step, row_loss in _row_losses(draft, embedding, head, sample, steps, shift):
            sums[step] = sums[step] + row_loss
            counts[step] += 1
    total = torch.zeros((), dtype=embedding.dtype)
    for step in range(steps):
        if counts[step]:
            total = total + decay**step * sums[step] / counts[step]
    return total


KeyValue = tuple[list[Tensor], tuple[Tensor, ...]]


def _row_losses(
    draft: Draft, embedding: Tensor, head: Tensor, sample: Sample, steps: int, shift: int
) -> Iterator[tuple[int, Tensor]]:
    ids = sample.token_ids.tolist()
    mask = sample.loss_mask.tolist()
    length = len(ids)
    feature = [draft.fc.weight @ sample.aux[p].to(embedding.dtype) for p in range(length)]
    base = [_key_value(draft, embedding[ids[p + 1]], feature[p], p) for p in range(length - 1)]
    for p in range(length - 2):
        if not (mask[p + 1] and mask[p + 2]):
            continue
        hidden = feature[p]
        own: list[KeyValue] = []
        for step in range(steps):
            if p + 2 + step >= length:
                break
            x = _fuse(draft, embedding[ids[p + 1 + step]], hidden)
            if step:
                own.append(_key_value(draft, embedding[ids[p + 1 + step]], hidden, p + step))
            hidden = _layer(draft, x, hidden, [*base[: p + 1], *own], p + step)
            logits = draft.lm_head.weight @ _norm(hidden, draft.norm)
            teacher = (head @ sample.final()[p + 1 + step + shift].to(head.dtype)).softmax(-1)
            yield step, -(teacher * logits.log_softmax(-1)).sum()


def _norm(x: Tensor, module: RMSNorm) -> Tensor:
    scaled: Tensor = x / torch.sqrt((x * x).mean() + module.eps) * module.weight
    return scaled


def _fuse(draft: Draft, embed: Tensor, hidden: Tensor) -> Tensor:
    layer = draft.midlayer
    return torch.cat((_norm(embed, layer.input_layernorm), _norm(hidden, layer.hidden_norm)))


def _turn(rope: dict[str, Any], width: int, i: int) -> tuple[float, float]:
    """Angle of dimension `i` a position, and what cosines and sines are multiplied by.

    YaRN as its paper writes it: the more often a dimension turns within the original context, the
    less of it is divided.
    """
    base = rope["rope_theta"]
    plain = 1 / base ** (2 * i / width)
    if rope["rope_type"] == "default":
        return plain, 1.0
    low, high = (
        width / 2 * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi), base)
        for turns in (rope["beta_fast"], rope["beta_slow"])
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    divided = min(max((i - low) / (high - low), 0), 1)
    angle = plain * (1 - divided) + plain * divided / rope["factor"]
    return angle, 0.1 * math.log(rope["factor"]) + 1


def _rotate(x: Tensor, position: int, rope: dict[str, Any]) -> Tensor:
    half = len(x) // 2
    first, second = [], []
    for i in range(half):
        turn, factor = _turn(rope, len(x), i)
        cos, sin = math.cos(position * turn) * factor, math.sin(position * turn) * factor
        first.append(x[i] * cos - x[i + half] * sin)
        second.append(x[i + half] * cos + x[i] * sin)
    return torch.stack(first + second)


def _heads(x: Tensor, width: int, position: int, rope: dict[str, Any]) -> list[Tensor]:
    return [_rotate(head, position, rope) for head in x.split(width)]


def _key_value(draft: Draft, embed: Tensor, hidden: Tensor, position: int) -> KeyValue:
    config, attention = draft.config, draft.midlayer.self_attn
    x = _fuse(draft, embed, hidden)
    keys = _heads(attention.k_proj.weight @ x, config.head_dim, position, config.rope)
    return keys, (attention.v_proj.weight @ x).split(config.head_dim)


def _layer(draft: Draft, x: Tensor, hidden: Tensor, seen: list[KeyValue], position: int) -> Tensor:
    config, layer = draft.config, draft.midlayer
    queries = _heads(layer.self_attn.q_proj.weight @ x, config.head_dim, position, config.rope)
    mixed = []
    for number, query in enumerate(queries):
        group = number // (config.heads // config.kv_heads)
        scores = torch.stack([query @ keys[group] for keys, _ in seen]) / math.sqrt(config.head_dim)
        values = torch.stack([values[group] for _, values in seen])
        mixed.append(scores.softmax(0) @ values)
    hidden = hidden + layer.self_attn.o_proj.weight @ torch.cat(mixed)
    y = _norm(hidden, layer.post_attention_layernorm)
    gated = F.silu(layer.mlp.gate_proj.weight @ y) * (layer.mlp.up_proj.weight @ y)
    out: Tensor = hidden + layer.mlp.down_proj.weight @ gated
    return out
