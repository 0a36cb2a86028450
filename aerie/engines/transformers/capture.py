"""Hidden states of whole sequences by one forward pass through the target's decoder."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from aerie.contracts.layers import Layers
from aerie.engines.base import Captured
from aerie.errors import EngineError


def capture(
    model: PreTrainedModel, batch: Sequence[Sequence[int]], layers: Layers
) -> list[Captured]:
    """States of each sequence of `batch`, in its order: aux bf16 [t, A*H] and last bf16 [t, H].

    The batch is padded on the right. Only the wanted layers are kept, and no logits are computed:
    a model's own `output_hidden_states` would hold all of its layers at once.

    Raises:
        EngineError: a sequence is empty, or the model has no such layer.
    """
    if not batch:
        return []
    if not all(batch):
        raise EngineError("a sequence without tokens has no states", saw=list(map(len, batch)))
    decoder = cast(Any, model).get_decoder()
    if layers.hf_hidden_states[-1] >= len(decoder.layers):
        raise EngineError(
            "the model has no such layer",
            saw=layers.hf_hidden_states,
            expected=f"indices below {len(decoder.layers)}",
        )
    ids, mask = _padded(batch, model.device)
    taken: dict[int, torch.Tensor] = {}
    hooks = [
        decoder.layers[layer - 1].register_forward_hook(partial(_take, taken, layer))
        for layer in layers.hf_hidden_states
    ]
    try:
        with torch.no_grad():
            output = decoder(input_ids=ids, attention_mask=mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    last = _stored(output.last_hidden_state)
    captured = []
    for row, sequence in enumerate(batch):
        kept = [taken[layer][row, : len(sequence)] for layer in layers.hf_hidden_states]
        # A copy, since a view would keep the whole padded batch in memory.
        captured.append(Captured(torch.cat(kept, dim=-1), last[row, : len(sequence)].clone()))
    return captured


def _padded(
    batch: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, batch))
    # Any id will do for padding: it stands on the right, where causal attention never looks.
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, sequence in enumerate(batch):
        ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return ids.to(device), mask.to(device)


def _take(
    taken: dict[int, torch.Tensor], layer: int, module: torch.nn.Module, inputs: Any, output: Any
) -> None:
    taken[layer] = _stored(output[0] if isinstance(output, tuple) else output)


def _stored(states: torch.Tensor) -> torch.Tensor:
    return states.to(device="cpu", dtype=torch.bfloat16)
