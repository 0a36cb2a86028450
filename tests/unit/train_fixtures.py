"""A small training run: states of a target that counts in fives, and a trainer for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aerie.contracts.codecs import Codec
from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.states import Sample
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.train.data import Located, locate
from aerie.train.objective import Frozen
from aerie.train.ranks import Ranks
from aerie.train.settings import DraftSettings
from aerie.train.tracking import Tracking
from aerie.train.trainer import Trainer

VOCAB, MAP = 60, 32
CONFIG = DraftConfig(
    hidden_size=32,
    intermediate_size=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab_size=VOCAB,
    draft_vocab_size=MAP,
    max_position=128,
    norm_eps=1e-5,
    rope={"rope_theta": 10000.0, "rope_type": "default"},
    layers=Layers((1, 2, 3)),
)
SETTINGS = DraftSettings(
    steps=2, epochs=2, learning_rate=0.01, pack_tokens=128, eval_share=0.2, dtype="float32",
    checkpoint_every=3, keep_checkpoints=3,
)  # fmt: skip
ALONE = Ranks(0, 1, torch.device("cpu"))


def write_samples(folder: Path, count: int = 40, codec: Codec = "bf16") -> list[Located]:
    """States of a target that counts in fives, in a part of one file."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator)
    lengths = [int(torch.randint(12, 40, (), generator=generator)) for _ in range(count)]
    index = folder / "states/tiny/000/index.json"
    file = index.parent / "00000.safetensors"
    widths = (CONFIG.aux_width, CONFIG.hidden_size)
    with StatesWriter(file, lengths, *widths, "key", codec) as writer:
        for length in lengths:
            start = int(torch.randint(MAP, (), generator=generator))
            ids = ((start + 5 * torch.arange(length)) % MAP).int()
            last = states[(ids.long() + 5) % MAP].bfloat16()
            mask = torch.tensor([0] * 5 + [1] * (length - 5), dtype=torch.uint8)
            writer.add(Sample(ids, mask, last.repeat(1, 3), last))
    write_index(index, {file.name: [f"s{n}.0" for n in range(count)]}, CONFIG.layers, {}, {})
    return locate([index])


def make_trainer(
    folder: Path,
    samples: Sequence[Located],
    ranks: Ranks = ALONE,
    tracking: Tracking | None = None,
    **changes: Any,
) -> Trainer:
    """A trainer of `samples`; `changes` are settings."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator)
    ids = torch.arange(VOCAB)
    frozen = Frozen(states, states[:MAP] * 0.3, torch.where(ids < MAP, ids, -1))
    settings = SETTINGS.model_copy(update=changes)
    contract = {"settings": settings.recipe(ranks.world)}
    checkpoints = folder / "checkpoints"
    return Trainer(settings, CONFIG, frozen, samples, checkpoints, contract, ranks, tracking)
