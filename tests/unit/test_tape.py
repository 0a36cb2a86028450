"""What the tape holds at Kimi-K2.5's size: the figures of docs/training.md."""

import torch

from aerie.config import ROOT
from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.train.packing import Pack, Segments
from aerie.train.tape import new_tape

KIMI = DraftConfig(
    hidden_size=7168, intermediate_size=18432, heads=64, kv_heads=64, head_dim=128,
    vocab_size=163840, draft_vocab_size=32000, max_position=262144, norm_eps=1e-6,
    rope={"rope_theta": 1000000.0, "rope_type": "default"}, layers=Layers((2, 30, 58)),
)  # fmt: skip


def tape_bytes(rows: int, supervised: int, steps: int = 7, recompute: bool = False) -> int:
    """Bytes of the tensors of a tape."""
    with torch.device("meta"):
        wide, index = torch.empty(0, dtype=torch.bfloat16), torch.empty(0, dtype=torch.int64)
        bounds = torch.empty(2, dtype=torch.int32)
        pack = Pack(
            aux=wide.new_empty(rows, KIMI.aux_width),
            token_ids=index.new_empty(rows),
            positions=index.new_empty(rows),
            supervised=index.new_empty(supervised),
            labels=index.new_empty(supervised),
            teacher=wide.new_empty(supervised, KIMI.hidden_size),
            remaining=index.new_empty(supervised),
            segments=Segments(bounds, bounds, rows, supervised, rows),
            answers=(supervised,),
            tokens=rows,
        )
        tape = new_tape(
            KIMI, wide.new_empty(KIMI.vocab_size, KIMI.hidden_size), pack, steps, wide, recompute
        )
    tensors = [value for value in vars(tape).values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_the_documented_bytes_of_a_row_are_those_of_the_tape() -> None:
    row, supervised_row = 107_008, 1_348_352
    for rows, supervised in ((2048, 1228), (20480, 12288), (20480, 20480)):
        assert tape_bytes(rows, supervised) == row * rows + supervised_row * supervised
    hidden, wide, heads, width, steps = 7168, 18432, 64, 128, 7
    qkv = 3 * heads * width
    assert row == 2 * (4 * hidden + qkv) + 4 * width
    assert supervised_row == (
        2 * (
            (steps - 1) * (hidden + qkv) + heads * width + (steps + 1) * hidden
            + steps * (heads * width + 2 * hidden + 2 * wide)
        ) + 4 * steps * heads + 4 * (steps - 1) * width
    )  # fmt: skip
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    assert f"{row:,} /" in text and f"{supervised_row:,} /" in text


def test_activation_checkpointing_keeps_the_mlp_of_one_step() -> None:
    saved = tape_bytes(2048, 1228) - tape_bytes(2048, 1228, recompute=True)
    assert saved == 1228 * 2 * 6 * (7168 + 2 * 18432)
