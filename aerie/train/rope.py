"""Rotary positions: plain ones, and YaRN's (arXiv 2309.00071), which Kimi-K2.5 and DeepSeek have.

The draft has its target's, so that positions agree. What is computed is what SGLang's
`layers/rotary_embedding/yarn.py` and transformers' `modeling_rope_utils.py` compute.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aerie.errors import ConfigError


def read_rope(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The RoPE of a model's `config.json`, as transformers 5 writes it: `rope_type`, `rope_theta`
    and the parameters of that type. Older files have `rope_theta` beside `rope_scaling`.

    Raises:
        ConfigError: the file has none, one that is not known here, or one that engines read in
            different ways.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta"), **scaling}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    rope = {name: value for name, value in rope.items() if value is not None}
    needed = {"default": set(), "yarn": {"factor", "original_max_position_embeddings"}}
    kind = rope["rope_type"]
    if kind not in needed:
        raise ConfigError(
            "the trainer does not know this RoPE, and an engine would turn the draft's keys by "
            "other angles than it was trained with",
            saw=f"rope_type {kind!r} in {where}",
            expected=" or ".join(needed),
            remedy="docs/training.md, under `Not built`",
        )
    if missing := sorted(({"rope_theta"} | needed[kind]) - set(rope)):
        raise ConfigError(
            f"the RoPE of {where} is not whole",
            saw=f"no {', '.join(missing)}",
            remedy="take config.json from the model's own publisher again",
        )
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ConfigError(
            f"{where} turns a part of each head alone, which the draft's class in SGLang does not",
            saw=f"partial_rotary_factor {rope['partial_rotary_factor']}",
            expected="1",
            remedy="docs/training.md, under `Not built`",
        )
    # transformers goes by it, SGLang does not.
    stated = rope.pop("attention_factor", None)
    if stated is not None and not math.isclose(stated, attention_factor(rope)):
        raise ConfigError(
            f"engines read the RoPE of {where} in different ways",
            saw=f"attention_factor {stated}",
            expected=f"{attention_factor(rope):.6g}, which follows from its other parameters",
            remedy="docs/training.md, under `The target's RoPE`",
        )
    return rope


def attention_factor(rope: Mapping[str, Any]) -> float:
    """What cosines and sines are multiplied by (section 3.4 of the paper): 1 without YaRN."""
    if rope["rope_type"] != "yarn":
        return 1.0
    factor, scale, scale_all = rope["factor"], rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and scale_all:
        return _magnitude(factor, scale) / _magnitude(factor, scale_all)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def inverse_frequencies(rope: Mapping[str, Any], head_dim: int, device: torch.device) -> Tensor:
    """Angles of each position, float64 [head_dim / 2].

    YaRN leaves dimensions that turn `beta_fast` times or more within the original context as they
    are, divides those that turn `beta_slow` times or less by `factor`, and blends in between.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device) / head_dim
    plain: Tensor = rope["rope_theta"] ** -exponents
    if rope["rope_type"] != "yarn":
        return plain
    low, high = (_dimension(rope, name, head_dim) for name in ("beta_fast", "beta_slow"))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    places = torch.arange(head_dim // 2, dtype=torch.float64, device=device)
    divided = ((places - low) / max(high - low, 1e-3)).clamp(0, 1)
    blended: Tensor = plain * (1 - divided) + plain / rope["factor"] * divided
    return blended


def _dimension(rope: Mapping[str, Any], name: str, head_dim: int) -> float:
    """The dimension that turns as often as `rope` says within the original context."""
    turns = rope.get(name) or {"beta_fast": 32, "beta_slow": 1}[name]
    length = rope["original_max_position_embeddings"]
    return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))
