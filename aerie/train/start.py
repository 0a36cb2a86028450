"""What a run starts from: the target's weights that training reads, and a draft at step 0."""

import torch
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.vocab import VocabMap
from aerie.target import Target, decoder_config
from aerie.target_weights import read_embedding, read_head
from aerie.train.objective import Frozen
from aerie.train.rope import read_rope
from aerie.train.settings import DraftSettings
from aerie.train.weights import Weights

_DEVIATION = 0.02
_BRANCH_SCALE = 0.2


def freeze(target: Target, vocab: VocabMap, dtype: torch.dtype, device: torch.device) -> Frozen:
    """Read the target's weights that training needs."""
    ids = torch.from_numpy(vocab.target_ids)
    draft_ids = torch.full((vocab.vocab_size,), -1, dtype=torch.int64)
    draft_ids[ids] = torch.arange(len(ids))
    return Frozen(
        read_embedding(target).to(device, dtype),
        read_head(target)[ids].to(device, dtype),
        draft_ids.to(device),
    )


def draft_config(
    target: Target, settings: DraftSettings, vocab: VocabMap, layers: Layers
) -> DraftConfig:
    """A draft with the target's head shape, RoPE and norm.

    Its attention is plain. A target with MLA (`kv_lora_rank`) has no heads of keys to copy: the
    draft has as many heads as the target's queries, each as wide as the target's values.

    Raises:
        ConfigError: the target has a RoPE that the trainer does not know.
    """
    decoder = decoder_config(target.folder)
    heads = decoder["num_attention_heads"]
    has_mla = "kv_lora_rank" in decoder
    width = decoder["v_head_dim"] if has_mla else decoder.get("head_dim")
    return DraftConfig(
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or decoder["intermediate_size"],
        heads=heads,
        kv_heads=heads if has_mla else decoder.get("num_key_value_heads", heads),
        head_dim=width or target.hidden_size // heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(vocab.target_ids),
        max_position=target.max_position,
        norm_eps=decoder["rms_norm_eps"],
        rope=read_rope(decoder, f"{target.folder}/config.json"),
        layers=layers,
    )


def new_weights(config: DraftConfig, head: Tensor, seed: int) -> Weights:
    """Float32 weights at step 0: seeded normal ones around a lens on the target's last captured
    layer. `head` are the target's rows of the map, [K, H].

    `fc` passes that layer through, the decoder layer adds little to it, and the head is the
    target's own rows: on little data this is worth half an epoch (docs/draft.md).
    """
    weights = Weights.zeros(config, torch.float32, torch.device("cpu"))
    # Drawn on the CPU, so that a seed means the same draft everywhere.
    generator = torch.Generator().manual_seed(seed)
    for view in weights.named.values():
        if view.dim() == 2:
            view.normal_(0, _DEVIATION, generator=generator)
        else:
            view.fill_(1)
    weights.fc[:, -config.hidden_size :] += torch.eye(config.hidden_size)
    weights.o *= _BRANCH_SCALE
    weights.down *= _BRANCH_SCALE
    weights.head.copy_(head)
    return Weights(config, weights.flat.to(head.device))
