"""A tiny random DeepSeek-V3, as a checkpoint that SGLang and transformers both read."""

from pathlib import Path

from aerie.config import PathSource, TargetSettings
from aerie.files import read_json, write_json
from aerie.target import Target
from aerie.target_build import build_target
from tests.conftest import TINY_VOCABULARY, save_tiny_checkpoint


def build_tiny_deepseek(folder: Path) -> Target:
    """Write the checkpoint into `folder` and make a target of it, in float32."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    checkpoint = folder / "checkpoint"
    # Its tokenizer and template.
    save_tiny_checkpoint(checkpoint)
    ids = read_json(checkpoint / "config.json")
    config = DeepseekV3Config(
        vocab_size=TINY_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        initializer_range=0.2,
        # SGLang's class has no other: it asserts a scaled RoPE on the CPU.
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        bos_token_id=ids["bos_token_id"],
        eos_token_id=ids["eos_token_id"],
        pad_token_id=ids["pad_token_id"],
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        DeepseekV3ForCausalLM(config).float().save_pretrained(checkpoint)
    # Keys of the published checkpoints, which this version of transformers no longer writes.
    published = {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    write_json(checkpoint / "config.json", read_json(checkpoint / "config.json") | published)
    source = PathSource(path=str(checkpoint))
    settings = TargetSettings(name="tiny-deepseek", source=source, dtype="float32")
    return build_target(settings, folder / "target")
