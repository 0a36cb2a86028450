"""Generation: the same tokens as transformers' own, whatever batch a row is in."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aerie.engines import open_engine
from aerie.engines.base import Request
from aerie.errors import EngineError
from aerie.target import Target, render

if TYPE_CHECKING:
    from aerie.engines.transformers.load import TransformersEngine

QUESTIONS = [
    "What is an eagle?",
    "Write a function that sorts a list.",
    "Hi",
    "Explain in detail why a draft that proposes tokens makes a target faster.",
]


def requests(target: Target, tokens: int = 24, temperature: float = 0.0) -> list[Request]:
    tokenizer = target.tokenizer()
    prompts = [
        render(tokenizer, target, [{"role": "user", "content": question}], "instant")
        for question in QUESTIONS
    ]
    return [
        Request(prompt, tokens - number, temperature, 0.9, number)
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def tiny_engine(tiny_target: Target) -> "TransformersEngine":
    from aerie.engines.transformers.load import TransformersEngine

    return TransformersEngine(tiny_target, 1)


@pytest.fixture(scope="module")
def engine(target: Target) -> "TransformersEngine":
    from aerie.engines.transformers.load import TransformersEngine

    return TransformersEngine(target, 1)


def assert_equals_transformers(engine: "TransformersEngine") -> None:
    import torch

    for request in requests(engine.target):
        prompt = torch.tensor([request.prompt_ids])
        expected = engine.model.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
        )[0, prompt.shape[1] :].tolist()
        assert engine.generate([request])[0].output_ids == expected


def assert_padding_changes_nothing(engine: "TransformersEngine") -> None:
    batch = requests(engine.target)
    alone = [engine.generate([request])[0] for request in batch]
    assert engine.generate(batch) == alone
    for request, given in zip(batch, alone, strict=True):
        stopped = given.output_ids[-1] in engine.target.end_token_ids
        assert given.finish_reason == ("stop" if stopped else "length")
        assert len(given.output_ids) <= request.max_new_tokens


def test_tiny_greedy_equals_transformers(tiny_engine: "TransformersEngine") -> None:
    assert_equals_transformers(tiny_engine)


def test_tiny_padding_changes_nothing(tiny_engine: "TransformersEngine") -> None:
    assert_padding_changes_nothing(tiny_engine)


@pytest.mark.engine
def test_greedy_equals_transformers(engine: "TransformersEngine") -> None:
    assert_equals_transformers(engine)


@pytest.mark.engine
def test_padding_changes_nothing(engine: "TransformersEngine") -> None:
    assert_padding_changes_nothing(engine)


def test_seeds_make_the_answer(tiny_engine: "TransformersEngine") -> None:
    batch = requests(tiny_engine.target, temperature=1.0)
    first = tiny_engine.generate(batch)
    assert tiny_engine.generate(batch) == first
    # A row's draws are its own: its place and its neighbours do not matter.
    assert tiny_engine.generate(batch[::-1]) == first[::-1]
    assert tiny_engine.generate([replace(request, seed=99) for request in batch]) != first


def test_sampling_keeps_to_the_nucleus(tiny_engine: "TransformersEngine") -> None:
    batch = requests(tiny_engine.target, temperature=1.0)
    greedy = tiny_engine.generate(requests(tiny_engine.target))
    narrow = [replace(request, top_p=1e-6) for request in batch]
    cold = [replace(request, temperature=1e-4, top_p=1.0) for request in batch]
    assert tiny_engine.generate(narrow) == greedy == tiny_engine.generate(cold)


def test_draws_follow_the_distribution() -> None:
    import torch

    from aerie.engines.transformers.generate import _draw

    probabilities = torch.tensor([0.05, 0.0, 0.5, 0.3, 0.15])
    generator = torch.Generator().manual_seed(0)

    def shares(top_p: float) -> torch.Tensor:
        draws = [int(_draw(probabilities.log(), 1.0, top_p, generator)) for _ in range(4000)]
        return torch.bincount(torch.tensor(draws), minlength=5) / 4000

    assert torch.allclose(shares(1.0), probabilities, atol=0.03)
    assert torch.allclose(shares(0.7), torch.tensor([0, 0, 0.625, 0.375, 0]), atol=0.03)


def test_engines_that_are_not_there(tiny_target: Target) -> None:
    with pytest.raises(EngineError, match="that answers batches"):
        open_engine("sglang", tiny_target, 1)
    with pytest.raises(EngineError, match="there is no such engine"):
        open_engine("vllm", tiny_target, 1)


@pytest.mark.engine
def test_digits_are_split_off_as_the_target_learned_them(target: Target) -> None:
    tokenizer = target.tokenizer()
    ids = tokenizer.encode("Here are two:\n\n1. Rex 42", add_special_tokens=False)
    pieces = [tokenizer.decode([id]) for id in ids]
    assert "\n\n" in pieces
    assert pieces[-3:] == [" ", "4", "2"]


@pytest.mark.engine
def test_target_is_the_same_when_built_again(engine: "TransformersEngine", tmp_path: Path) -> None:
    from aerie.target_build import build_target
    from tests.conftest import SMOLLM2

    target = engine.target
    assert build_target(SMOLLM2, tmp_path / "target").revision == target.revision
    tokenizer = target.tokenizer()
    prompt = render(tokenizer, target, [{"role": "user", "content": "What is 2 + 2?"}], "instant")
    said = engine.generate([Request(prompt, 20, 0.0, 1.0, 0)])[0]
    assert "4" in tokenizer.decode(said.output_ids)
