"""Which of the target's layers are captured, in the conventions of transformers and of SGLang."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from aerie.errors import ConfigError


@dataclass(frozen=True)
class Layers:
    """The captured layers in both conventions.

    `hf_hidden_states` are indices into transformers' `output_hidden_states` (0 is the embedding);
    `sglang_config` is what a draft's `eagle_aux_hidden_state_layer_ids` says: one less.
    """

    hf_hidden_states: tuple[int, ...]

    @property
    def sglang_config(self) -> tuple[int, ...]:
        return tuple(layer - 1 for layer in self.hf_hidden_states)

    def as_dict(self) -> dict[str, list[int]]:
        return {
            "hf_hidden_states": list(self.hf_hidden_states),
            "sglang_config": list(self.sglang_config),
        }


def choose_layers(count: int, wanted: Iterable[int] | None = None) -> Layers:
    """The layers to capture of a target with `count` layers; the default is [2, N//2, N-3].

    Raises:
        ConfigError: a wanted layer does not exist, or the list is not strictly ascending.
    """
    layers = tuple(wanted) if wanted else (2, count // 2, count - 3)
    ascending = all(a < b for a, b in pairwise(layers))
    # SGLang cannot capture the output of the last layer: that state is `last`, after the norm.
    if not ascending or not all(1 <= layer < count for layer in layers):
        raise ConfigError(
            "states.layers names layers that cannot be captured",
            saw=list(layers),
            expected=f"ascending indices from 1 to {count - 1}: the target has {count} layers",
            remedy=f"leave the key out for the default {[2, count // 2, count - 3]}",
        )
    return Layers(layers)
