"""Chain speculation at batch 1: k draft tokens, verified in one forward pass of the target.

The loop is the same with and without a draft: plain decoding is a chain of length 0. Both caches
are rolled back to what was verified, so greedy output equals plain greedy output wherever the
target's arithmetic does not depend on how many tokens share a pass (float32; in lower precision
the share of equal outputs is measured by the bench).
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from aerie.contracts.draft import ARCHITECTURE, DraftConfig, read_draft
from aerie.engines.transformers.cache import growing_cache
from aerie.engines.transformers.taps import Taps
from aerie.errors import EngineError
from aerie.files import read_json
from aerie.train.model import Draft, attend, load_weights


@dataclass
class Decoded:
    """One greedy answer. A round is one forward pass of the target after the prefill.

    `accepted` and `possible` hold, for each round, the draft tokens kept and the draft tokens that
    could have counted before the answer's end. `seconds` is decoding without the prefill.
    """

    output_ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    possible: list[int] = field(default_factory=list)
    seconds: float = 0.0


class ServedDraft:
    """A draft as an engine runs it: cached keys and values, one row at a time.

    `draft_ids_to_target` int64 [K] are the target ids of the draft's; the embedding is shared.
    `draft_ids` int64 [V] is the way back, -1 outside the map; `states_width` is the width of the
    states that the draft was fed last.
    """

    def __init__(self, draft: Draft, embedding: Tensor, draft_ids_to_target: Tensor) -> None:
        self.draft = draft.to(embedding.dtype).eval()
        self.embedding, self.target_ids = embedding, draft_ids_to_target
        self.draft_ids = torch.full((len(embedding),), -1, dtype=torch.int64)
        self.draft_ids[draft_ids_to_target] = torch.arange(len(draft_ids_to_target))
        self.states_width = 0
        self._keys = self._values = embedding.new_zeros(0)
        self._verified = 0

    def reset(self, capacity: int) -> None:
        """Forget the cache and make room for `capacity` rows."""
        config = self.draft.config
        self._keys = self.embedding.new_zeros(capacity, config.kv_heads, config.head_dim)
        self._values = torch.zeros_like(self._keys)
        self._verified = 0

    def propose(self, states: Tensor, token_ids: list[int], k: int) -> list[int]:
        """Take in the rows verified since the last call and propose k target ids.

        `states` [n, A*H] are the target's at n positions, `token_ids` the token after each.
        """
        draft = self.draft
        self.states_width = states.shape[-1]
        self._verified, start = self._verified + len(token_ids), self._verified
        hidden = draft.reduce(states)
        fused = draft.fuse(self.embedding[token_ids], hidden)
        self._store(fused, start)
        proposed: list[int] = []
        for position in range(self._verified - 1, self._verified - 1 + k):
            if proposed:
                fused = draft.fuse(self.embedding[proposed[-1:]], hidden)
                self._store(fused, position)
            hidden = self._row(fused[-1:], hidden[-1:], position)
            proposed.append(int(self.target_ids[draft.logits(hidden).argmax()]))
        return proposed

    @torch.inference_mode()
    def logits(self, states: Tensor, token_ids: list[int]) -> Tensor:
        """Logits over the map [K] after the last of n rows; `states` [n, A*H] as in `propose`."""
        self.reset(len(token_ids))
        hidden = self.draft.reduce(states)
        fused = self.draft.fuse(self.embedding[token_ids], hidden)
        self._store(fused, 0)
        row = self._row(fused[-1:], hidden[-1:], len(token_ids) - 1)
        return self.draft.logits(row)[0]

    def _store(self, fused: Tensor, start: int) -> None:
        stop = start + len(fused)
        keys, values = self.draft.keys_values(fused, torch.arange(start, stop))
        self._keys[start:stop], self._values[start:stop] = keys, values

    def _row(self, fused: Tensor, hidden: Tensor, position: int) -> Tensor:
        queries = self.draft.queries(fused, torch.tensor([position]))
        keys, values = self._keys[: position + 1], self._values[: position + 1]
        return self.draft.finish(hidden, attend(queries, keys, values))


class Speculator:
    """Decodes greedily with a target and, if it is given one, a draft."""

    def __init__(
        self, model: PreTrainedModel, end_token_ids: tuple[int, ...], taps: Taps, draft: ServedDraft
    ) -> None:
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        self._config = model.config
        self._end, self._taps, self._draft = frozenset(end_token_ids), taps, draft

    @torch.inference_mode()
    def decode(self, prompt_ids: list[int], max_new_tokens: int, k: int) -> Decoded:
        """Answer `prompt_ids` with chains of k draft tokens; k = 0 is plain decoding."""
        cache = growing_cache(self._config)
        done = Decoded()
        self._draft.reset(len(prompt_ids) + max_new_tokens + k + 1)
        done.output_ids = self._forward(prompt_ids, cache)[-1:]
        states, ids = self._states(len(prompt_ids)), [*prompt_ids[1:], *done.output_ids]
        start = time.perf_counter()
        while len(done.output_ids) < max_new_tokens and done.output_ids[-1] not in self._end:
            room = max_new_tokens - len(done.output_ids)
            chain = self._draft.propose(states, ids, k) if k else []
            says = self._forward([done.output_ids[-1], *chain], cache)
            kept = next((i for i in range(k) if chain[i] != says[i]), k)
            fresh = self._until_end(says[: kept + 1])[:room]
            done.output_ids += fresh
            done.accepted.append(min(kept, len(fresh)))
            done.possible.append(min(k, room if fresh[-1] not in self._end else len(fresh)))
            if kept < k:
                cache.crop(kept - k)
            states, ids = self._states(kept + 1), fresh
        done.seconds = time.perf_counter() - start
        return done

    def _forward(self, ids: list[int], cache: Cache) -> list[int]:
        output = self._decoder(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
        # Only the last row of a prefill is asked for, and its logits are the widest of all.
        rows = (
            output.last_hidden_state[0]
            if cache.get_seq_length() > len(ids)
            else (output.last_hidden_state[0, -1:])
        )
        best: list[int] = self._head(rows).argmax(-1).tolist()
        return best

    def _states(self, rows: int) -> Tensor:
        return self._taps.aux()[0, :rows]

    def _until_end(self, ids: list[int]) -> list[int]:
        for number, token in enumerate(ids):
            if token in self._end:
                return ids[: number + 1]
        return ids


def embedding_of(model: PreTrainedModel) -> Tensor:
    """The target's embedding [V, H], which its draft shares."""
    embedding = model.get_input_embeddings().weight
    if not isinstance(embedding, Tensor):
        raise EngineError("the target's embedding has no plain weight", saw=type(embedding))
    return embedding


def load_draft(folder: Path, embedding: Tensor) -> ServedDraft:
    """Load a draft checkpoint to serve beside a target with this embedding [V, H].

    The algorithm follows from the checkpoint's architecture and is never typed by anyone.

    Raises:
        ContractError: the checkpoint is damaged.
        EngineError: it is no EAGLE-3 draft, or it does not fit the target.
    """
    content = read_json(folder / "config.json")
    if content.get("architectures") != [ARCHITECTURE]:
        raise EngineError(
            f"{folder} holds no draft that this engine can serve",
            saw=content.get("architectures"),
            expected=[ARCHITECTURE],
        )
    config, tensors = read_draft(folder)
    _check_fit(folder, config, embedding)
    draft = Draft(config)
    load_weights(draft, tensors)
    target_ids = tensors["d2t"] + torch.arange(config.draft_vocab_size)
    return ServedDraft(draft, embedding, target_ids)


def _check_fit(folder: Path, config: DraftConfig, embedding: Tensor) -> None:
    expected = (config.vocab_size, config.hidden_size)
    if tuple(embedding.shape) != expected:
        raise EngineError(
            f"the draft in {folder} was trained for another target",
            saw=f"an embedding of {tuple(embedding.shape)}",
            expected=expected,
            remedy="train a draft for this target: remove the draft folder and run the build again",
        )
