"""The draft's weights as one flat tensor, and the matrices that a step multiplies as views of it.

Queries, keys and values lie next to each other, gate and up too, so each group is one matrix
product; the checkpoint's separate names are views of the same memory. Weights, gradient and AdamW's
moments share the layout, so an optimizer step, a norm or an all-reduce is one call on one tensor.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from aerie.contracts.draft import DraftConfig

_GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
# The matrix units want each matrix to begin on a boundary of 128 bytes at least.
_ALIGNMENT = 128


class Weights:
    """Views of `flat` for one draft.

    fc [H, A*H]; qkv [(heads + 2 kv) d, 2H], its columns the embedding's half, then the hidden
    state's; o [H, heads d]; gate_up [2I, H]; down [H, I]; head [K, H]; and the norms [H].
    `named` has the names and shapes of the checkpoint.
    """

    def __init__(self, config: DraftConfig, flat: Tensor) -> None:
        self.config, self.flat = config, flat
        self.named: dict[str, Tensor] = {}
        for name, start, shape in _layout(config):
            self.named[name] = flat[start : start + shape.numel()].view(shape)
        layer, hidden = "midlayer.", config.hidden_size
        self.fc, self.head = self.named["fc.weight"], self.named["lm_head.weight"]
        self.norm_embeds = self.named[layer + "input_layernorm.weight"]
        self.norm_hidden = self.named[layer + "hidden_norm.weight"]
        self.norm_mlp = self.named[layer + "post_attention_layernorm.weight"]
        self.norm_out = self.named["norm.weight"]
        self.qkv = self._joined(layer + "self_attn.q_proj.weight", self.qkv_width(config))
        self.qkv_embeds, self.qkv_hidden = self.qkv[:, :hidden], self.qkv[:, hidden:]
        self.o = self.named[layer + "self_attn.o_proj.weight"]
        self.gate_up = self._joined(layer + "mlp.gate_proj.weight", 2 * config.intermediate_size)
        self.down = self.named[layer + "mlp.down_proj.weight"]

    @classmethod
    def zeros(cls, config: DraftConfig, dtype: torch.dtype, device: torch.device) -> "Weights":
        """Weights of the given type, all zero."""
        return cls(config, torch.zeros(flat_size(config), dtype=dtype, device=device))

    @classmethod
    def of(cls, config: DraftConfig, tensors: Mapping[str, Tensor]) -> "Weights":
        """A copy of a checkpoint's tensors, in their dtype; the map's are passed over."""
        some = tensors["fc.weight"]
        weights = cls.zeros(config, some.dtype, some.device)
        weights.load(tensors)
        return weights

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a checkpoint's tensors into place."""
        for name, view in self.named.items():
            view.copy_(tensors[name].detach())

    @staticmethod
    def qkv_width(config: DraftConfig) -> int:
        """Rows of the joined projection: queries, keys and values."""
        return (config.heads + 2 * config.kv_heads) * config.head_dim

    def _joined(self, first: str, rows: int) -> Tensor:
        start = self.named[first]
        offset = start.storage_offset() - self.flat.storage_offset()
        return self.flat[offset : offset + rows * start.shape[1]].view(rows, start.shape[1])


def flat_size(config: DraftConfig) -> int:
    """Elements of the flat tensor, the gaps between matrices included."""
    *_, (_, start, shape) = _layout(config)
    return _aligned(start + shape.numel())


def _layout(config: DraftConfig) -> list[tuple[str, int, torch.Size]]:
    layout, end, previous = [], 0, ""
    for name, shape in config.shapes().items():
        if name in ("d2t", "t2d"):
            continue
        part = name.split(".")[-2]
        joined = any(part in group and previous in group for group in _GROUPS)
        start = end if joined else _aligned(end)
        layout.append((name, start, torch.Size(shape)))
        end, previous = start + torch.Size(shape).numel(), part
    return layout


def _aligned(elements: int) -> int:
    return -(-elements // _ALIGNMENT) * _ALIGNMENT
