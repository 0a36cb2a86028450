"""Bytes: states by codec, answers, and what training writes."""

import math
from typing import get_args

from aerie.config import Config
from aerie.contracts.codecs import Codec
from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import choose_layers
from aerie.contracts.states import token_bytes
from aerie.plan.settings import Shape
from aerie.train.settings import DraftSettings

CODECS: tuple[Codec, ...] = get_args(Codec)

# Tables and journal of the demo: 9.5 bytes for a token of prompt or answer.
RESPONSES_BYTES_PER_TOKEN = 9.5

# float32 weights and two moments of AdamW in a checkpoint; and bf16 for the draft itself. Beside
# the checkpoints that are kept there are the best one and the one that is being written.
_CHECKPOINT_BYTES = 12
_MORE_CHECKPOINTS = 2
_EXPORT_BYTES = 2
# The MLP of the usual decoder, for a draft that takes the target's without saying how wide it is.
_MLP_FACTOR = 4


def bytes_per_token(shape: Shape, config: Config, codec: Codec) -> int:
    """Bytes of one token in a states file.

    Raises:
        ConfigError: `states.layers` names layers that the target does not have.
    """
    aux = len(choose_layers(shape.layers, config.states.layers).hf_hidden_states)
    widths = (aux * shape.hidden_size, shape.hidden_size)
    return token_bytes(*widths, codec, config.states.teacher.stored())


def states_files(tokens_per_part: float, parts: int, bytes_each: int, file_bytes: int) -> int:
    """Number of states files: each holds whole samples up to `file_bytes`."""
    tokens_per_file = max(file_bytes // bytes_each, 1)
    return parts * max(math.ceil(tokens_per_part / tokens_per_file), 1) if parts else 0


def draft_parameters(shape: Shape, config: Config, draft: DraftSettings) -> int:
    """Parameters of a draft, at most: attention as wide as the target, without shared keys."""
    hidden = shape.hidden_size
    sizes = DraftConfig(
        hidden_size=hidden,
        intermediate_size=draft.intermediate_size or _MLP_FACTOR * hidden,
        heads=1,
        kv_heads=1,
        head_dim=hidden,
        vocab_size=0,
        draft_vocab_size=config.vocab.size,
        max_position=shape.max_position,
        norm_eps=0.0,
        rope={},
        layers=choose_layers(shape.layers, config.states.layers),
    )
    return sum(math.prod(size) for size in sizes.shapes().values())


def drafts_bytes(shape: Shape, config: Config, weights: int | None) -> int:
    """Bytes of all drafts and their checkpoints; `weights` is the size of one that exists."""
    total = 0
    for draft in config.drafts.values():
        parameters = weights / _EXPORT_BYTES if weights else draft_parameters(shape, config, draft)
        checkpoints = draft.keep_checkpoints + _MORE_CHECKPOINTS
        total += round(parameters * (_EXPORT_BYTES + checkpoints * _CHECKPOINT_BYTES))
    return total
