"""Chain speculation against plain decoding, on a tiny target in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers, choose_layers
from aerie.contracts.vocab import VocabMap
from aerie.engines.transformers.load import TransformersEngine
from aerie.engines.transformers.speculate import ServedDraft, Speculator, embedding_of
from aerie.engines.transformers.taps import Taps
from aerie.errors import EngineError
from aerie.target import Target
from aerie.train.model import Draft

PROMPTS = [[5, 9, 40, 77], [300, 12], [8, 8, 8, 200, 201, 33, 90]]
BUDGET = 24


@pytest.fixture(scope="module")
def engine(tiny_target: Target) -> TransformersEngine:
    return TransformersEngine(tiny_target, threads=1)


@pytest.fixture
def taps(engine: TransformersEngine, tiny_target: Target) -> Iterator[Taps]:
    with Taps(engine.model, choose_layers(tiny_target.layers)) as taps:
        yield taps


def random_draft(engine: TransformersEngine, target: Target, vocab: VocabMap) -> ServedDraft:
    config = DraftConfig(
        hidden_size=target.hidden_size,
        intermediate_size=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(vocab.target_ids),
        max_position=target.max_position,
        norm_eps=1e-5,
        rope={"rope_theta": 10000.0, "rope_type": "default"},
        layers=choose_layers(target.layers),
    )
    torch.manual_seed(0)
    return ServedDraft(
        Draft(config), embedding_of(engine.model), torch.from_numpy(vocab.target_ids)
    )


class OracleDraft(ServedDraft):
    """Proposes the target's own continuation, spoilt at every `wrong_every`-th proposal."""

    def __init__(self, draft: ServedDraft, answers: dict[int, list[int]], wrong_every: int) -> None:
        self.__dict__.update(draft.__dict__)
        self._answers, self._wrong_every, self._count = answers, wrong_every, 0
        self.answer: list[int] = []
        self.seen = 0

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self.seen = 0

    def propose(self, states: Tensor, token_ids: list[int], k: int) -> list[int]:
        super().propose(states, token_ids, k)
        # The first call brings the prompt but its first token, and the first output token.
        self.seen = self.seen + len(token_ids) if self.seen else 1
        chain = (self.answer[self.seen : self.seen + k] + [0] * k)[:k]
        for position in range(k):
            self._count += 1
            if self._count % self._wrong_every == 0:
                chain[position] = (chain[position] + 1) % 512
        return chain


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_output_equals_plain_decoding(
    engine: TransformersEngine, taps: Taps, tiny_target: Target, k: int
) -> None:
    draft = random_draft(engine, tiny_target, VocabMap(torch.arange(0, 512, 4).numpy(), 512))
    speculator = Speculator(engine.model, tiny_target.end_token_ids, taps, draft)
    for prompt in PROMPTS:
        plain = speculator.decode(prompt, BUDGET, 0)
        speculated = speculator.decode(prompt, BUDGET, k)
        assert speculated.output_ids == plain.output_ids
        assert plain.accepted == [0] * (len(plain.output_ids) - 1)


@pytest.mark.parametrize("wrong_every", [2, 3, 7, 10_000])
def test_partly_right_chains_roll_both_caches_back(
    engine: TransformersEngine, taps: Taps, tiny_target: Target, wrong_every: int
) -> None:
    served = random_draft(engine, tiny_target, VocabMap(torch.arange(512).numpy(), 512))
    plain = Speculator(engine.model, tiny_target.end_token_ids, taps, served)
    for prompt in PROMPTS:
        expected = plain.decode(prompt, BUDGET, 0).output_ids
        oracle = OracleDraft(served, {}, wrong_every)
        oracle.answer = expected
        speculator = Speculator(engine.model, tiny_target.end_token_ids, taps, oracle)
        decoded = speculator.decode(prompt, BUDGET, 3)
        assert decoded.output_ids == expected
        if wrong_every > BUDGET * 3:
            assert decoded.accepted == decoded.possible
        assert all(a <= p for a, p in zip(decoded.accepted, decoded.possible, strict=True))


def test_end_token_and_budget_end_an_answer(
    engine: TransformersEngine, taps: Taps, tiny_target: Target
) -> None:
    draft = random_draft(engine, tiny_target, VocabMap(torch.arange(512).numpy(), 512))
    free = Speculator(engine.model, (), taps, draft)
    answer = free.decode(PROMPTS[0], BUDGET, 0).output_ids
    assert len(answer) == BUDGET
    oracle = OracleDraft(draft, {}, 10_000)
    oracle.answer = answer
    end = answer[10]
    stopped = Speculator(engine.model, (end,), taps, oracle).decode(PROMPTS[0], BUDGET, 3)
    assert stopped.output_ids == answer[: answer.index(end) + 1]
    assert free.decode(PROMPTS[0], 1, 3).output_ids == answer[:1]


def test_taps_leave_no_hooks_behind(engine: TransformersEngine, tiny_target: Target) -> None:
    with Taps(engine.model, choose_layers(tiny_target.layers)):
        pass
    assert all(not layer._forward_hooks for layer in engine.model.get_decoder().layers)


def test_a_layer_that_does_not_exist(engine: TransformersEngine, tiny_target: Target) -> None:
    with pytest.raises(EngineError, match="no such layer"):
        Taps(engine.model, Layers((1, 2, tiny_target.layers)))


def test_a_draft_of_another_target_is_refused(tmp_path: Path) -> None:
    from aerie.engines.transformers.speculate import load_draft
    from aerie.files import write_json

    write_json(tmp_path / "config.json", {"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(EngineError, match="no draft that this engine can serve"):
        load_draft(tmp_path, torch.zeros(4, 4))
