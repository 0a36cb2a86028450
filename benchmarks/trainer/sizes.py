"""The sizes that all three measure, and Aerie's state at them: random weights and states."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.states import Sample
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.train.data import Located, locate
from aerie.train.objective import Frozen
from aerie.train.weights import Weights

STEPS, DECAY, SUPERVISED = 7, 0.8, 0.6
# Kimi-K2.5: a draft of 1.19 B trainable parameters.
CONFIG = DraftConfig(
    hidden_size=7168, intermediate_size=18432, heads=64, kv_heads=64, head_dim=128,
    vocab_size=163840, draft_vocab_size=32000, max_position=262144, norm_eps=1e-6,
    rope={"rope_theta": 1000000.0, "rope_type": "default"}, layers=Layers((2, 30, 58)),
)  # fmt: skip


def new_weights(config: DraftConfig, device: torch.device) -> Weights:
    """Random bfloat16 weights."""
    weights = Weights.zeros(config, torch.bfloat16, device)
    for view in weights.named.values():
        torch.nn.init.normal_(view, 1.0 if view.dim() == 1 else 0.0, 0.02)
    return weights


def new_frozen(config: DraftConfig, device: torch.device) -> Frozen:
    """A random target whose map is the first ids."""
    with device:
        embedding = torch.randn(config.vocab_size, config.hidden_size, dtype=torch.bfloat16)
        head = torch.randn(config.draft_vocab_size, config.hidden_size, dtype=torch.bfloat16) * 0.02
        ids = torch.arange(config.vocab_size)
        return Frozen(embedding, head, torch.where(ids < config.draft_vocab_size, ids, -1))


def new_sample(config: DraftConfig, tokens: int) -> Sample:
    """Random states of one sample, the last 60 % of it supervised."""
    answer = int(tokens * SUPERVISED)
    return Sample(
        torch.randint(config.vocab_size, (tokens,), dtype=torch.int32),
        torch.tensor([0] * (tokens - answer) + [1] * answer, dtype=torch.uint8),
        torch.randn(tokens, config.aux_width, dtype=torch.bfloat16),
        torch.randn(tokens, config.hidden_size, dtype=torch.bfloat16),
    )


def write_states(config: DraftConfig, folder: Path, tokens: int, count: int) -> list[Located]:
    """A part of `count` samples in one states file."""
    sample = new_sample(config, tokens)
    index = folder / "states/bench/000/index.json"
    file = index.parent / "00000.safetensors"
    lengths = [tokens] * count
    with StatesWriter(file, lengths, config.aux_width, config.hidden_size, "bench") as writer:
        for _ in lengths:
            writer.add(sample)
    names = [f"s{number}.0" for number in range(count)]
    write_index(index, {file.name: names}, config.layers, {}, {})
    return locate([index])
