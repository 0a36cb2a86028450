"""The draft gate refuses what SGLang would take in silence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.draft import DraftConfig, check_draft, read_draft, write_draft
from aerie.contracts.layers import Layers
from aerie.errors import ContractError, GateError
from aerie.gates.draft import overfit_one
from aerie.train.model import Draft

CONFIG = DraftConfig(
    hidden_size=8,
    intermediate_size=12,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocab_size=40,
    draft_vocab_size=16,
    max_position=64,
    norm_eps=1e-5,
    rope={"rope_theta": 10000.0, "rope_type": "default"},
    layers=Layers((2, 30, 58)),
)
Tensors = dict[str, torch.Tensor]


def good_tensors() -> Tensors:
    torch.manual_seed(0)
    tensors = {name: value.bfloat16() for name, value in Draft(CONFIG).state_dict().items()}
    ids = torch.arange(16) * 2 + 3
    member = torch.zeros(40, dtype=torch.bool)
    member[ids] = True
    return tensors | {"d2t": ids - torch.arange(16), "t2d": member}


def test_a_good_checkpoint_passes_and_reads_back(tmp_path: Path) -> None:
    write_draft(tmp_path, CONFIG, good_tensors())
    check_draft(tmp_path, 64)
    config, tensors = read_draft(tmp_path)
    assert config == CONFIG
    assert set(tensors) == set(CONFIG.shapes())


def test_the_config_says_what_sglang_reads() -> None:
    content = CONFIG.as_json()
    assert content["architectures"] == ["LlamaForCausalLMEagle3"]
    assert content["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 29, 57]
    assert content["draft_vocab_size"] == 16
    assert content["max_position_embeddings"] == 64
    assert CONFIG.aux_width == 3 * 8


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: change(tensors[name])}


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (drop("lm_head.weight"), "missing ['lm_head.weight']"),
        (drop("d2t"), "missing ['d2t']"),
        (lambda tensors: tensors | {"model.fc.weight": tensors["fc.weight"].clone()}, "unknown"),
        (put("fc.weight", lambda t: t[:, :8].contiguous()), "fc.weight"),
        (put("fc.weight", lambda t: t.float()), "torch.float32"),
        (put("norm.weight", lambda t: t * float("nan")), "not finite"),
        (put("lm_head.weight", torch.zeros_like), "one value everywhere"),
        (put("d2t", torch.zeros_like), "t2d"),
        (put("d2t", lambda t: t + 100), "d2t"),
        (put("t2d", torch.logical_not), "t2d"),
    ],
)
def test_a_spoilt_checkpoint_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Tensors], Tensors], named: str
) -> None:
    write_draft(tmp_path, CONFIG, spoil(good_tensors()))
    with pytest.raises(GateError) as caught:
        check_draft(tmp_path, 64)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures"),
        ({"max_position_embeddings": 32}, "max_position_embeddings"),
    ],
)
def test_a_wrong_config_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    write_draft(tmp_path, CONFIG, good_tensors())
    content = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(GateError, match=named):
        check_draft(tmp_path, 64)


def test_a_missing_key_and_a_truncated_file_are_named(tmp_path: Path) -> None:
    write_draft(tmp_path, CONFIG, good_tensors())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ContractError, match="not a whole checkpoint"):
        read_draft(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ContractError, match="eagle_config"):
        read_draft(tmp_path)


def test_a_draft_that_cannot_learn_is_stopped() -> None:
    falling = iter([3.0 * 0.9**step for step in range(61)])
    overfit_one(lambda: next(falling))
    with pytest.raises(GateError, match="by heart"):
        overfit_one(lambda: 3.0)
