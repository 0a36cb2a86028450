"""The draft's weights in a few flat tensors, and the matrices that a step multiplies as views.

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
ALIGNMENT = 128
# The first of each part, and its name. A part is what is sent as one while a step computes.
_PARTS = {
    "fc.weight": "fc",
    "midlayer.input_layernorm.weight": "norms",
    "midlayer.self_attn.q_proj.weight": "qkv",
    "midlayer.self_attn.o_proj.weight": "o",
    "midlayer.mlp.gate_proj.weight": "gate_up",
    "midlayer.mlp.down_proj.weight": "down",
    "norm.weight": "head",
}


class Matrices:
    """Views of `parts`, flat tensors that follow each other as `spans` says.

    fc [H, A*H]; qkv [(heads + 2 kv) d, 2H], its columns the embedding's half, then the hidden
    state's; o [H, heads d]; gate_up [2I, H]; down [H, I]; head [K, H]; and the norms [H], the last
    of them in the head's part. `named` has the names and shapes of the checkpoint.
    """

    def __init__(self, config: DraftConfig, parts: Mapping[str, Tensor]) -> None:
        self.config, self.parts = config, dict(parts)
        self.named: dict[str, Tensor] = {}
        for name, part, start, shape in _layout(config):
            self.named[name] = parts[part][start : start + shape.numel()].view(shape)
        layer, hidden = "midlayer.", config.hidden_size
        self.fc, self.head = self.named["fc.weight"], self.named["lm_head.weight"]
        self.norm_embeds = self.named[layer + "input_layernorm.weight"]
        self.norm_hidden = self.named[layer + "hidden_norm.weight"]
        self.norm_mlp = self.named[layer + "post_attention_layernorm.weight"]
        self.norm_out = self.named["norm.weight"]
        self.qkv = self._joined("qkv", qkv_width(config), 2 * hidden)
        self.qkv_embeds, self.qkv_hidden = self.qkv[:, :hidden], self.qkv[:, hidden:]
        self.o = self.named[layer + "self_attn.o_proj.weight"]
        self.gate_up = self._joined("gate_up", 2 * config.intermediate_size, hidden)
        self.down = self.named[layer + "mlp.down_proj.weight"]

    @property
    def dtype(self) -> torch.dtype:
        """Of all parts."""
        return self.norm_out.dtype

    def acquire(self, *parts: str) -> None:
        """Say that these parts are read or written from here on."""

    def release(self, *parts: str) -> None:
        """Say that these parts are read no more in this pack, or that their gradient is whole."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a checkpoint's tensors into place."""
        for name, view in self.named.items():
            view.copy_(tensors[name].detach())

    def _joined(self, part: str, rows: int, columns: int) -> Tensor:
        return self.parts[part][: rows * columns].view(rows, columns)


class Weights(Matrices):
    """Matrices whose parts are one tensor, `flat`."""

    def __init__(self, config: DraftConfig, flat: Tensor) -> None:
        super().__init__(config, {name: flat[span] for name, span in spans(config).items()})
        self.flat = flat

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


def qkv_width(config: DraftConfig) -> int:
    """Rows of the joined projection: queries, keys and values."""
    return (config.heads + 2 * config.kv_heads) * config.head_dim


def flat_size(config: DraftConfig) -> int:
    """Elements of the flat tensor, the gaps between matrices included."""
    *_, last = spans(config).values()
    end: int = last.stop
    return end


def spans(config: DraftConfig) -> dict[str, slice]:
    """Where each part lies in the flat tensor: one after the other, in multiples of `ALIGNMENT`."""
    sizes: dict[str, int] = {}
    for _, part, start, shape in _layout(config):
        sizes[part] = _aligned(start + shape.numel())
    found, end = {}, 0
    for part, size in sizes.items():
        found[part] = slice(end, end + size)
        end += size
    return found


def _layout(config: DraftConfig) -> list[tuple[str, str, int, torch.Size]]:
    """Each tensor of the checkpoint: its name, its part, where it begins there, and its shape."""
    layout, end, previous, part = [], 0, "", ""
    for name, shape in config.shapes().items():
        if name in ("d2t", "t2d"):
            continue
        if name in _PARTS:
            part, end = _PARTS[name], 0
        kind = name.split(".")[-2]
        joined = any(kind in group and previous in group for group in _GROUPS)
        start = end if joined else _aligned(end)
        layout.append((name, part, start, torch.Size(shape)))
        end, previous = start + torch.Size(shape).numel(), kind
    return layout


def _aligned(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT
