"""Single weights of the target, read from its checkpoint without loading the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.errors import ContractError
from aerie.files import read_json
from aerie.target import Target

if TYPE_CHECKING:
    import torch

_HEAD = ("lm_head.weight", "language_model.lm_head.weight")
_EMBEDDING = (
    "model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
)
_NORM = (
    "model.norm.weight",
    "language_model.model.norm.weight",
    "model.language_model.norm.weight",
)


def read_head(target: Target) -> "torch.Tensor":
    """The output matrix [V, H], in the checkpoint's dtype; the embedding where they are tied.

    Raises:
        ContractError: the checkpoint is damaged, has no such weight, or it has another shape.
    """
    shards = _shards(target.folder)
    tied = _tied(target.folder)
    # A checkpoint that says nothing was saved by a family whose default is to tie.
    untold = tied is None and not any(name in shards for name in _HEAD)
    return _read(target, shards, _EMBEDDING if tied or untold else _HEAD)


def read_embedding(target: Target) -> "torch.Tensor":
    """The input embedding [V, H], in the checkpoint's dtype.

    Raises:
        ContractError: the checkpoint is damaged, has no such weight, or it has another shape.
    """
    return _read(target, _shards(target.folder), _EMBEDDING)


def read_norm(target: Target) -> "torch.Tensor":
    """The scale of the final norm [H], in the checkpoint's dtype.

    Raises:
        ContractError: the checkpoint is damaged, has no such weight, or it has another shape.
    """
    return _read(target, _shards(target.folder), _NORM, (target.hidden_size,))


def _tied(folder: Path) -> bool | None:
    config: dict[str, Any] = read_json(folder / "config.json")
    for level in (config, config.get("text_config") or {}):
        if "tie_word_embeddings" in level:
            return bool(level["tie_word_embeddings"])
    return None


def _shards(folder: Path) -> dict[str, Path]:
    """Which file holds each weight."""
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    if index.exists():
        return {name: folder / file for name, file in read_json(index)["weight_map"].items()}
    whole = folder / "model.safetensors"
    try:
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
    except (OSError, SafetensorError) as error:
        raise ContractError(
            f"{whole} is not a readable checkpoint",
            saw=error,
            expected="model.safetensors, or model.safetensors.index.json and its shards",
            remedy="run `make verify ARGS=--repair`, then the build again",
        ) from error


def _read(
    target: Target,
    shards: dict[str, Path],
    names: tuple[str, ...],
    shape: tuple[int, ...] | None = None,
) -> "torch.Tensor":
    from safetensors import SafetensorError, safe_open

    name = next((name for name in names if name in shards), None)
    if name is None:
        raise ContractError(
            f"{target.folder} has no weight that is known as {names[0]}",
            saw=sorted(shards)[:8],
            expected=" or ".join(names),
            remedy="give a checkpoint in the layout of transformers",
        )
    try:
        with safe_open(shards[name], framework="pt") as file:
            weight: torch.Tensor = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ContractError(
            f"{shards[name]} is not a readable checkpoint",
            saw=error,
            remedy="run `make verify ARGS=--repair`, then the build again",
        ) from error
    expected = shape or (target.vocab_size, target.hidden_size)
    if tuple(weight.shape) != expected:
        raise ContractError(
            f"{name} of {target.folder} has another shape than target.json says",
            saw=tuple(weight.shape),
            expected=expected,
            remedy="remove target.json and run the build again",
        )
    return weight
