"""The head and the embedding, read without the model, in every layout that is known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from aerie.engines.transformers.load import load_model
from aerie.errors import ContractError
from aerie.target import Target
from aerie.target_weights import read_embedding, read_head

HEAD, EMBEDDING = torch.full((512, 64), 1.0), torch.full((512, 64), 2.0)


def checkpoint(
    folder: Path, target: Target, weights: dict[str, torch.Tensor], config: dict[str, object]
) -> Target:
    folder.mkdir(exist_ok=True)
    save_file(
        {name: weight.clone() for name, weight in weights.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config))
    return replace(target, folder=folder)


def test_equal_to_the_models_own(tiny_target: Target) -> None:
    model = load_model(tiny_target)
    weights = model.state_dict()
    assert torch.equal(read_head(tiny_target), weights["lm_head.weight"])
    assert torch.equal(read_embedding(tiny_target), weights["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    "names",
    [
        ("lm_head.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "language_model.model.embed_tokens.weight"),
        ("lm_head.weight", "model.language_model.embed_tokens.weight"),
    ],
)
def test_known_names(tmp_path: Path, tiny_target: Target, names: tuple[str, str]) -> None:
    weights = dict(zip(names, (HEAD, EMBEDDING), strict=True))
    target = checkpoint(tmp_path, tiny_target, weights, {"tie_word_embeddings": False})
    assert torch.equal(read_head(target), HEAD)
    assert torch.equal(read_embedding(target), EMBEDDING)


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {"text_config": {"tie_word_embeddings": True}},
        {},
        {"text_config": None},
    ],
)
def test_tied(tmp_path: Path, tiny_target: Target, config: dict[str, object]) -> None:
    weights = {"model.embed_tokens.weight": EMBEDDING}
    assert torch.equal(read_head(checkpoint(tmp_path, tiny_target, weights, config)), EMBEDDING)


def test_shards(tmp_path: Path, tiny_target: Target) -> None:
    target = checkpoint(tmp_path, tiny_target, {}, {"tie_word_embeddings": False})
    (tmp_path / "model.safetensors").unlink()
    save_file({"lm_head.weight": HEAD}, tmp_path / "2.safetensors")
    index = {"weight_map": {"lm_head.weight": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(read_head(target), HEAD)
    with pytest.raises(ContractError, match=r"known as model\.embed_tokens\.weight"):
        read_embedding(target)
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ContractError, match="not a readable checkpoint"):
        read_head(target)


def test_what_is_not_there_is_an_error(tmp_path: Path, tiny_target: Target) -> None:
    weights = {"model.embed_tokens.weight": EMBEDDING}
    target = checkpoint(tmp_path, tiny_target, weights, {"tie_word_embeddings": False})
    with pytest.raises(ContractError, match=r"known as lm_head\.weight"):
        read_head(target)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ContractError, match="not a readable checkpoint"):
        read_embedding(target)


def test_another_shape_is_an_error(tmp_path: Path, tiny_target: Target) -> None:
    weights = {"lm_head.weight": torch.zeros(500, 64)}
    target = checkpoint(tmp_path, tiny_target, weights, {})
    with pytest.raises(ContractError, match="another shape"):
        read_head(target)
