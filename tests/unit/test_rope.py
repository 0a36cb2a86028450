"""RoPE of the draft: YaRN as transformers computes it, files of all ages, and refusals."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from aerie.contracts.layers import Layers
from aerie.contracts.vocab import VocabMap
from aerie.errors import ConfigError
from aerie.files import write_json
from aerie.target import Target
from aerie.train.rope import attention_factor, inverse_frequencies, read_rope
from aerie.train.settings import DraftSettings
from aerie.train.start import draft_config

CPU = torch.device("cpu")
# What Kimi-K2.5 has, in the form of its config.json.
KIMI = {
    "type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
DECODER: dict[str, Any] = {
    "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512, "v_head_dim": 128,
    "qk_rope_head_dim": 64, "head_dim": 64, "intermediate_size": 18432, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "rope_scaling": KIMI,
}  # fmt: skip

scales = st.none() | st.floats(0.5, 1.5)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1.5, 64), st.sampled_from([1024, 4096, 32768]), st.floats(8, 40), st.floats(0.5, 4),
    st.sampled_from([1e4, 5e4, 1e6]), st.sampled_from([8, 64, 128]), scales, scales, st.booleans(),
)  # fmt: skip
def test_yarn_is_transformers(
    factor: float, original: int, fast: float, slow: float, theta: float, width: int,
    scale: float | None, scale_all: float | None, truncate: bool,
) -> None:  # fmt: skip
    rope: dict[str, Any] = {
        "rope_type": "yarn", "rope_theta": theta, "factor": factor, "beta_fast": fast,
        "beta_slow": slow, "original_max_position_embeddings": original, "truncate": truncate,
    }  # fmt: skip
    rope |= {} if scale is None else {"mscale": scale}
    rope |= {} if scale_all is None else {"mscale_all_dim": scale_all}
    config = LlamaConfig(
        head_dim=width, hidden_size=4 * width, num_attention_heads=4, rope_parameters=rope,
        max_position_embeddings=int(original * factor),
    )  # fmt: skip
    expected, scaling = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    assert attention_factor(rope) == pytest.approx(scaling)
    found = inverse_frequencies(rope, width, CPU)
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=0)


def test_kimi_has_no_scale_of_its_own() -> None:
    rope = read_rope(DECODER, "config.json")
    assert rope["rope_type"] == "yarn" and "type" not in rope and rope["rope_theta"] == 50000.0
    assert attention_factor(rope) == 1
    # Without the two scales cosines and sines would be 1.42 times as large.
    plain = {name: value for name, value in rope.items() if not name.startswith("mscale")}
    assert attention_factor(plain) == pytest.approx(0.1 * math.log(64) + 1)


def test_files_of_all_ages_say_the_same() -> None:
    new = {"rope_type": "yarn", "rope_theta": 50000.0} | {k: KIMI[k] for k in KIMI if k != "type"}
    assert read_rope({"rope_parameters": new}, "config.json") == read_rope(DECODER, "config.json")
    assert read_rope({"rope_theta": 1e4, "rope_scaling": None}, "config.json") == {
        "rope_type": "default",
        "rope_theta": 1e4,
    }


@pytest.mark.parametrize(
    ("rope", "names"),
    [
        ({"rope_type": "llama3", "rope_theta": 5e5}, "'llama3' in config.json"),
        ({"rope_type": "default"}, "no rope_theta"),
        ({"rope_type": "yarn", "rope_theta": 1e4}, "no factor, original_max_position_embeddings"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "0.5"),
        ({**KIMI, "rope_theta": 1e4, "attention_factor": 1.2}, "attention_factor 1.2"),
    ],
)
def test_what_would_be_served_differently_is_refused(rope: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        read_rope({"rope_parameters": rope}, "config.json")


def test_the_draft_of_a_target_that_nests_its_decoder_and_has_mla(tmp_path: Path) -> None:
    """Kimi-K2.5: no heads of keys to copy, and a `head_dim` that is not the values'."""
    write_json(tmp_path / "config.json", {"text_config": DECODER, "vision_config": {}})
    target = Target(
        folder=tmp_path, name="kimi", revision="0", dtype="bfloat16", layers=61, hidden_size=7168,
        vocab_size=163840, max_position=262144, end_token_ids=(1,), special_token_ids=(1,),
        thinking_variable="thinking",
    )  # fmt: skip
    vocab = VocabMap(np.arange(64), 163840)
    config = draft_config(target, DraftSettings(), vocab, Layers((2, 30, 58)))
    assert (config.heads, config.kv_heads, config.head_dim) == (64, 64, 128)
    assert (config.intermediate_size, config.norm_eps) == (18432, 1e-5)
    written = config.as_json()
    assert written["rope_parameters"] == written["rope_scaling"] == config.rope
    assert written["rope_theta"] == 50000.0 and written["max_position_embeddings"] == 262144
