"""Shapes without weights: a config.json each, for servers that run on dummy weights.

SGLang fills them by `--load-format dummy`. Nothing is downloaded and no tokenizer is needed.
"""

from pathlib import Path
from typing import Any

import numpy as np

from aerie.contracts.layers import Layers
from aerie.contracts.vocab import VocabMap
from aerie.files import digest_json, write_json
from aerie.target import Target
from aerie.train.settings import DraftSettings
from aerie.train.start import draft_config

_DRAFT_VOCABULARY = 32768


def _llama(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int,
    *, positions: int = 8192, theta: float = 500000.0, tied: bool = False,
) -> dict[str, Any]:  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _deepseek(layers: int, *, dense: int, sizes: dict[str, int]) -> dict[str, Any]:
    """The family of Kimi-K2: MLA, a shared expert, routed experts from layer `dense` on."""
    rope = {
        "rope_theta": 50000.0, "factor": 64.0, "original_max_position_embeddings": 4096,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": layers,
        "first_k_dense_replace": dense,
        "moe_layer_freq": 1,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "num_nextn_predict_layers": 0,
        "max_position_embeddings": 262144,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "yarn", "rope_type": "yarn", **rope},
        "rope_parameters": {"rope_type": "yarn", **rope},
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **sizes,
    }


_KIMI = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "vocab_size": 163840,
}  # fmt: skip
_TINY_KIMI = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
}  # fmt: skip

# Three dense layers where Kimi-K2 has one: the draft wants three aux layers below the last, and
# a layer of experts takes 34 GB in bfloat16. Two stacks differ by one layer of experts.
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, 49152, theta=100000.0, tied=True),
    "llama-8b": _llama(4096, 14336, 32, 32, 8, 128256),
    "kimi-5": _deepseek(5, dense=3, sizes=_KIMI),
    "kimi-6": _deepseek(6, dense=3, sizes=_KIMI),
    "tiny": _llama(64, 128, 8, 4, 2, 512, positions=2048),
    "tiny-kimi": _deepseek(5, dense=3, sizes=_TINY_KIMI),
}


def write_shape(name: str, folder: Path, dtype: str) -> tuple[Target, Path]:
    """A target without weights and, in a folder beside it, the draft that Aerie would train for it.

    Its aux layers are the default of `choose_layers`, or the last three of a shorter stack.
    """
    config = SHAPES[name] | {"dtype": dtype, "torch_dtype": dtype}
    target = Target(
        folder=folder / name, name=name, revision=digest_json(config), dtype=dtype,
        layers=config["num_hidden_layers"], hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"], max_position=config["max_position_embeddings"],
        end_token_ids=(config["eos_token_id"],), special_token_ids=(), thinking_variable=None,
    )  # fmt: skip
    write_json(target.folder / "config.json", config)
    draft = folder / f"{name}-draft"
    kept = min(_DRAFT_VOCABULARY, target.vocab_size)
    vocab = VocabMap(np.arange(kept, dtype=np.int64), target.vocab_size)
    count = target.layers
    layers = Layers((2, max(count // 2, 3), max(count - 3, 4)))
    sizes = draft_config(target, DraftSettings(), vocab, layers).as_json()
    write_json(draft / "config.json", sizes | {"torch_dtype": dtype})
    return target, draft
