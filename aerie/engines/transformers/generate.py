"""Batched generation: left padding, one decode loop, greedy or sampled row by row.

What is computed depends on the batch alone: rows sample from their own generators, and finished
rows leave the batch at points that follow from the answers.
"""

from collections.abc import Collection, Sequence

import torch
from transformers import PreTrainedModel

from aerie.engines.base import Answer, Request
from aerie.engines.transformers.cache import growing_cache

# Hidden behind the attention mask: any token that exists will do.
_PAD_ID = 0


@torch.inference_mode()
def generate(
    model: PreTrainedModel, batch: Sequence[Request], end_token_ids: Collection[int]
) -> list[Answer]:
    """Answer every request of `batch`, in its order.

    An answer ends with the first of `end_token_ids` (`stop`) or at the request's
    `max_new_tokens` (`length`).
    """
    outputs: list[list[int]] = [[] for _ in batch]
    rows = list(range(len(batch)))
    sampler = _Sampler(batch)
    tokens, mask = _pad_left([request.prompt_ids for request in batch])
    # As a tensor: `logits_to_keep=1` slices, and a strided slice makes matmul copy the whole output
    # matrix once for every row.
    last = torch.tensor([-1])
    cache = growing_cache(model.config)
    finished: set[int] = set()
    while True:
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        logits = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=last,
        ).logits[:, -1]
        sampled = sampler.sample(logits, rows)
        for row, token in zip(rows, sampled.tolist(), strict=True):
            if row not in finished:
                outputs[row].append(token)
                full = len(outputs[row]) == batch[row].max_new_tokens
                if full or token in end_token_ids:
                    finished.add(row)
        if len(finished) == len(batch):
            break
        tokens = sampled[:, None]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        live = [place for place, row in enumerate(rows) if row not in finished]
        if 2 * len(live) <= len(rows):
            keep = torch.tensor(live)
            cache.batch_select_indices(keep)
            tokens, mask = tokens[keep], mask[keep]
            rows = [rows[place] for place in live]
    return [_answer(output, end_token_ids) for output in outputs]


def _answer(output: list[int], end_token_ids: Collection[int]) -> Answer:
    return Answer(output, "stop" if output[-1] in end_token_ids else "length")


def _pad_left(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both int64 [rows, longest prompt]."""
    width = max(map(len, prompts))
    tokens = torch.full((len(prompts), width), _PAD_ID)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return tokens, mask


class _Sampler:
    """Chooses the next token of each row: the most likely one, or one drawn with the row's seed."""

    def __init__(self, batch: Sequence[Request]) -> None:
        self._batch = batch
        self._generators = [torch.Generator().manual_seed(request.seed) for request in batch]

    def sample(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Next tokens, int64 [rows], from `logits` [rows, V] of these rows of the batch."""
        chosen = logits.argmax(dim=-1)
        for place, row in enumerate(rows):
            request = self._batch[row]
            if request.temperature > 0:
                chosen[place] = _draw(
                    logits[place], request.temperature, request.top_p, self._generators[row]
                )
        return chosen


def _draw(
    logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator
) -> torch.Tensor:
    """One token drawn from `logits` [V] by inverting the distribution function."""
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    order = None
    if top_p < 1:
        probabilities, order = probabilities.sort(descending=True, stable=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities[before >= top_p] = 0
    cumulated = probabilities.cumsum(dim=-1)
    point = torch.rand((), dtype=torch.float64, generator=generator) * cumulated[-1]
    place = torch.searchsorted(cumulated, point, right=True).clamp_max(len(cumulated) - 1)
    return place if order is None else order[place]
