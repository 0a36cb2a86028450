"""Reading a decoder's hidden states on their way, for capture and for speculation alike."""

from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from aerie.contracts.layers import Layers
from aerie.errors import EngineError


class Taps:
    """Keeps the wanted layers' states of the latest forward pass, in the model's precision.

    A model's own `output_hidden_states` would hold all of its layers at once. Use as a context
    manager, so that the hooks leave the model with it.

    Raises:
        EngineError: the model has no such layer.
    """

    def __init__(self, model: PreTrainedModel, layers: Layers) -> None:
        self._layers, self._taken = layers.hf_hidden_states, dict[int, Tensor]()
        self._modules = model.get_decoder().layers
        if self._layers[-1] >= len(self._modules):
            raise EngineError(
                "the model has no such layer",
                saw=self._layers,
                expected=f"indices below {len(self._modules)}",
            )

    def __enter__(self) -> "Taps":
        # Entry i of `output_hidden_states` is the output of layer i-1: entry 0 is the embedding.
        self._hooks = [
            self._modules[layer - 1].register_forward_hook(partial(self._take, layer))
            for layer in self._layers
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._taken.clear()

    def aux(self) -> Tensor:
        """The layers' states of the latest pass, concatenated: [batch, tokens, A*H]."""
        return torch.cat([self._taken[layer] for layer in self._layers], dim=-1)

    def _take(self, layer: int, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._taken[layer] = output[0] if isinstance(output, tuple) else output
