"""What training computes for a prefix that an engine has read: the trainer's side of parity."""

from collections.abc import Sequence

import torch
from torch import Tensor

from aerie.contracts.states import Sample
from aerie.engines.transformers.speculate import ServedDraft
from aerie.train.objective import logits_of
from aerie.train.packing import make_pack
from aerie.train.unroll import unroll
from aerie.train.weights import Weights

# Rows of a prefix at most: it must fit into one pass of a server, and the trainer computes it here
# on the CPU.
PREFIX_TOKENS = 256


def trainer_logits(draft: ServedDraft, aux: Tensor, token_ids: Sequence[int]) -> Tensor:
    """Logits over the map [K] after the last of n rows, by the code that trains.

    `aux` [n, A*H] are the target's states at n positions, `token_ids` the n + 1 tokens: row p
    reads token p + 1.
    """
    rows, config = len(aux), draft.draft.config
    # A row is trained on if two tokens follow it; what the last of them is decides no logit.
    mask = torch.tensor([0] * rows + [1, 1], dtype=torch.uint8)
    ids = torch.tensor([*token_ids, 0], dtype=torch.int32)
    sample = Sample(
        ids,
        mask,
        torch.cat((aux, aux.new_zeros(2, config.aux_width))),
        aux.new_zeros(rows + 2, config.hidden_size),
    )
    weights = Weights.of(config, draft.draft.state_dict())
    with torch.inference_mode():
        outputs = unroll(weights, draft.embedding, make_pack([sample]), 1).outputs
        return logits_of(weights, outputs[0][:1])[0]
