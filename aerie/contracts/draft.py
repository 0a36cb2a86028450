"""The draft checkpoint: names, shapes and configuration as SGLang reads them.

SGLang's loader (`models/llama_eagle3.py`, `load_weights`) drops unknown names and leaves missing
ones at random values without a word, so the key set is checked here, before any server sees it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts.layers import Layers
from aerie.errors import ContractError, GateError
from aerie.files import read_json, replacing, write_json

if TYPE_CHECKING:
    import torch

ARCHITECTURE = "LlamaForCausalLMEagle3"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# What config.json calls the sizes.
_SIZES = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "draft_vocab_size": "draft_vocab_size",
    "max_position": "max_position_embeddings",
}


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of a draft. `rope` is the target's own `rope_parameters`, so positions agree."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position: int
    norm_eps: float
    rope: dict[str, Any]
    layers: Layers

    @property
    def aux_width(self) -> int:
        """Width of the concatenated aux states, A*H."""
        return len(self.layers.hf_hidden_states) * self.hidden_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint and its shape."""
        hidden, wide = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = {
            "input_layernorm.weight": (hidden,),
            "hidden_norm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, 2 * hidden),
            "self_attn.k_proj.weight": (keys, 2 * hidden),
            "self_attn.v_proj.weight": (keys, 2 * hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "mlp.gate_proj.weight": (wide, hidden),
            "mlp.up_proj.weight": (wide, hidden),
            "mlp.down_proj.weight": (hidden, wide),
        }
        return {
            "fc.weight": (hidden, self.aux_width),
            **{f"midlayer.{name}": shape for name, shape in layer.items()},
            "norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
        }

    def as_json(self) -> dict[str, Any]:
        """`config.json` of the checkpoint."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": self.norm_eps,
            # transformers 4 and SGLang before 0.5.10 read the flat keys, later ones the mapping.
            "rope_theta": self.rope["rope_theta"],
            "rope_scaling": None if self.rope["rope_type"] == "default" else self.rope,
            "rope_parameters": self.rope,
            "hidden_act": "silu",
            "torch_dtype": "bfloat16",
            "eagle_config": {
                "use_aux_hidden_state": True,
                _LAYER_IDS: list(self.layers.sglang_config),
            },
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "DraftConfig":
        """Read `config.json` of a checkpoint.

        Raises:
            ContractError: a key is missing, which SGLang would meet as a crash or in silence.
        """
        sizes: dict[str, Any] = {name: content.get(key) for name, key in _SIZES.items()}
        eagle: Any = content.get("eagle_config")
        layers: Any = eagle.get(_LAYER_IDS) if isinstance(eagle, dict) else None
        rope: Any = content.get("rope_parameters")
        norm_eps: Any = content.get("rms_norm_eps")
        wrong = [_SIZES[name] for name, size in sizes.items() if type(size) is not int or size < 1]
        if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
            wrong.append(f"eagle_config.{_LAYER_IDS}")
        if not isinstance(norm_eps, float):
            wrong.append("rms_norm_eps")
        if not isinstance(rope, dict) or not _is_whole(rope):
            wrong.append("rope_parameters")
        if wrong:
            raise ContractError(
                "config.json of the draft lacks a key",
                saw=f"no {', '.join(wrong)} that could be read",
                expected="see docs/draft.md",
                remedy="remove the draft's folder and run the build again: it exports it anew",
            )
        numbers = tuple(layer + 1 for layer in layers)
        return cls(**sizes, norm_eps=norm_eps, rope=rope, layers=Layers(numbers))


def _is_whole(rope: dict[str, Any]) -> bool:
    """Whether angles can be made from `rope`."""
    yarn = ("factor", "original_max_position_embeddings") if rope.get("rope_type") == "yarn" else ()
    numbers = [rope.get(name) for name in ("rope_theta", *yarn)]
    return isinstance(rope.get("rope_type"), str) and all(
        isinstance(number, int | float) and number is not True and number > 0 for number in numbers
    )


def write_draft(
    folder: Path, config: DraftConfig, tensors: "dict[str, torch.Tensor]"
) -> list[Path]:
    """Write `config.json` and `model.safetensors`, each whole or not at all; return their paths."""
    from safetensors.torch import save

    files = [folder / "config.json", folder / "model.safetensors"]
    write_json(files[0], config.as_json())
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(files[1]) as scratch:
        scratch.write_bytes(save(contiguous, metadata={"format": "pt"}))
    return files


def read_draft(folder: Path) -> "tuple[DraftConfig, dict[str, torch.Tensor]]":
    """Read a draft checkpoint.

    Raises:
        ContractError: a file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    content = read_json(folder / "config.json")
    config = DraftConfig.from_json(content if isinstance(content, dict) else {})
    try:
        return config, load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ContractError(
            f"{folder / 'model.safetensors'} is not a whole checkpoint",
            saw=error,
            remedy=f"remove {folder} and run the build again",
        ) from error


def check_draft(folder: Path, target_max_position: int) -> None:
    """The draft gate's check of a checkpoint: keys, shapes, dtypes, values and the map.

    Raises:
        GateError: what an engine would take in silence and answer with nothing accepted.
    """
    import torch

    config, tensors = read_draft(folder)
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if content.get("architectures") != [ARCHITECTURE]:
        _stop(folder, "architectures", content.get("architectures"), [ARCHITECTURE])
    if config.max_position != target_max_position:
        _stop(folder, "max_position_embeddings", config.max_position, target_max_position)
    shapes = config.shapes()
    if set(tensors) != set(shapes):
        missing, extra = sorted(set(shapes) - set(tensors)), sorted(set(tensors) - set(shapes))
        _stop(
            folder, "tensor names", f"missing {missing}, unknown {extra}", "exactly the contract's"
        )
    dtypes = {"d2t": torch.int64, "t2d": torch.bool}
    for name, shape in shapes.items():
        tensor, dtype = tensors[name], dtypes.get(name, torch.bfloat16)
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            _stop(folder, name, f"{tensor.dtype} {tuple(tensor.shape)}", f"{dtype} {shape}")
        if dtype == torch.bfloat16 and not torch.isfinite(tensor).all():
            _stop(folder, name, "values that are not finite", "finite values")
        if tensor.dim() == 2 and bool((tensor == tensor[0, 0]).all()):
            _stop(folder, name, "one value everywhere", "trained values")
    ids = tensors["d2t"] + torch.arange(config.draft_vocab_size)
    ascending = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0
    if not ascending or int(ids[-1]) >= config.vocab_size:
        _stop(folder, "d2t", "ids that do not ascend inside the vocabulary", "target = draft + d2t")
    if int(tensors["t2d"].sum()) != len(ids) or not bool(tensors["t2d"][ids].all()):
        _stop(folder, "t2d", "a set that differs from d2t's", "exactly the ids of d2t")


def _stop(folder: Path, what: str, saw: object, expected: object) -> None:
    raise GateError(
        "draft",
        f"{what} of {folder} would be misread by an engine",
        saw=saw,
        expected=expected,
        remedy=f"remove {folder} and run the build again; if it comes back, report it",
    )
