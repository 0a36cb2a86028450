"""A KV cache that grows in place: a decode step writes its own token and copies nothing else.

transformers' own dynamic cache concatenates, which copies the whole cache in every step. The
numbers are the same.
"""

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

_ROOM = 128


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache for a model with `config`; `crop(-n)` forgets the last n tokens for free.

    Layers that are not plain full attention keep transformers' own kind.
    """
    cache = DynamicCache(config=config)
    cache.layers = [
        _GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


class _GrowingLayer(DynamicLayer):
    """`keys` and `values` [rows, heads, tokens, width] are views of buffers with room to grow."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [rows, heads, new tokens, width] and return everything that is cached."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            room = end + max(_ROOM, end // 4)
            buffers = _buffer(key_states, room), _buffer(value_states, room)
            if self.keys is not None and self.values is not None and start:
                buffers[0][:, :, :start] = self.keys
                buffers[1][:, :, :start] = self.values
            self._buffers = buffers
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self._buffers
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows."""
        super().batch_select_indices(indices)
        self._buffers = None

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        self._buffers = None

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self._buffers = None


def _buffer(states: torch.Tensor, room: int) -> torch.Tensor:
    rows, heads, _, width = states.shape
    return states.new_empty(rows, heads, room, width)
