"""Time SpecForge's own offline EAGLE-3 step, unmodified, on states made up by us.

    PYTHONPATH=CHECKOUT python benchmarks/trainer/peer.py --tokens 2048 --out results.jsonl

CHECKOUT is a git checkout of sgl-project/SpecForge at a6b6b023 (its folder `specforge/` is enough).
What runs is its code: OnlineEagle3Model with flex attention and its Triton loss, the frozen
TargetHead, TrainerCore and BF16Optimizer; from files, its readers, loader and collator. Stood in
are the target's head (random) and the states. Prints nothing of its own but one line a data source.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

HIDDEN, WIDE, HEADS, WIDTH, VOCAB, MAP, STEPS = 7168, 18432, 64, 128, 163840, 32000, 7
WARM_UP, MEASURED, FILES = 4, 10, 8
SUPERVISED = 0.6
DEVICE = torch.device("cuda", 0)


def without_datasets() -> None:
    """SpecForge imports Hugging Face `datasets` and does not use it here."""
    if importlib.util.find_spec("datasets") is None:
        module = types.ModuleType("datasets")
        vars(module)["Dataset"] = type("Dataset", (), {})
        sys.modules["datasets"] = module


def draft_json(folder: Path) -> Path:
    """A draft configuration of Kimi-K2.5's size, as SpecForge reads it."""
    path = folder / "draft.json"
    path.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLMEagle3"], "attention_bias": False,
                "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
                "head_dim": WIDTH, "hidden_act": "silu", "hidden_size": HIDDEN,
                "target_hidden_size": HIDDEN, "initializer_range": 0.02,
                "intermediate_size": WIDE, "max_position_embeddings": 131072,
                "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": 1,
                "num_key_value_heads": HEADS, "pretraining_tp": 1, "rms_norm_eps": 1e-6,
                "rope_scaling": None, "rope_theta": 1000000.0, "tie_word_embeddings": False,
                "vocab_size": VOCAB, "draft_vocab_size": MAP,
            }
        )
    )  # fmt: skip
    return path


def trainer(folder: Path) -> Any:
    """SpecForge's TrainerCore around its draft, head and optimizer."""
    from specforge.algorithms.eagle3.model import OnlineEagle3Model
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
    from specforge.modeling.target.target_head import TargetHead
    from specforge.optimizer import BF16Optimizer
    from specforge.training.backend import FSDPTrainingBackend, ParallelConfig
    from specforge.training.controller import TrainerCore
    from specforge.training.strategies.base import Eagle3TrainStrategy

    config = AutoDraftModelConfig.from_file(str(draft_json(folder)))
    with DEVICE:
        draft = AutoDraftModel.from_config(
            config, attention_backend="flex_attention", torch_dtype=torch.bfloat16
        )
    used = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:MAP].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[used] = True
    torch.save({"d2t": used - torch.arange(MAP), "t2d": t2d}, folder / "map.pt")
    draft.load_vocab_mapping(str(folder / "map.pt"))
    draft.freeze_embedding()
    model = OnlineEagle3Model(
        draft_model=draft, length=STEPS, attention_backend="flex_attention", lk_loss_type=None
    ).to(device=DEVICE, dtype=torch.bfloat16)
    head = TargetHead.__new__(TargetHead)
    torch.nn.Module.__init__(head)
    head.config = types.SimpleNamespace(hidden_size=HIDDEN, vocab_size=VOCAB)
    head.hidden_size, head.vocab_size = HIDDEN, VOCAB
    with DEVICE, torch.no_grad():
        head.fc = torch.nn.Linear(HIDDEN, VOCAB, bias=False, dtype=torch.bfloat16)
        # A real target's tokens are in the map 97 to 99 times in 100. Its loss skips rows whose
        # best token is not, which with a random head would be most and flatter its time.
        head.fc.weight[t2d.to(DEVICE)] *= 4.0
    head.freeze_weights()
    head.eval()
    backend = FSDPTrainingBackend(
        ParallelConfig.from_distributed(),
        optimizer_factory=lambda module: BF16Optimizer(
            module, lr=1e-4, max_grad_norm=0.5, total_steps=1000, warmup_ratio=0.015
        ),
    )
    wrapped = backend.prepare_model(model, wrap=False, optimizer_target=model.draft_model)
    wrapped.train()
    strategy = Eagle3TrainStrategy(
        wrapped, target_head=head, compact_teacher=False, compact_teacher_chunk_size=None
    )
    return TrainerCore(strategy, backend, accumulation_steps=1)


def sample(tokens: int) -> dict[str, torch.Tensor]:
    """One sample in the format of its files: note that `hidden_state` is the last state there."""
    mask = torch.zeros(tokens, dtype=torch.long)
    mask[tokens - int(tokens * SUPERVISED) :] = 1
    return {
        "input_ids": torch.randint(0, VOCAB, (tokens,)),
        "loss_mask": mask,
        "aux_hidden_state": torch.randn(1, tokens, 3 * HIDDEN, dtype=torch.bfloat16),
        "hidden_state": torch.randn(1, tokens, HIDDEN, dtype=torch.bfloat16),
    }


def on_gpu(tokens: int) -> Iterator[Any]:
    """One batch that stays on the device."""
    from specforge.runtime.contracts import TrainBatch

    made = sample(tokens)
    made["loss_mask"][-1] = 0
    batch = TrainBatch(
        sample_ids=["s0"],
        strategy="eagle3",
        tensors={
            "input_ids": made["input_ids"][None].to(DEVICE),
            "attention_mask": torch.ones(1, tokens, dtype=torch.long, device=DEVICE),
            "loss_mask": made["loss_mask"][None].to(DEVICE),
            "hidden_state": made["aux_hidden_state"].to(DEVICE),
            "target": made["hidden_state"].to(DEVICE),
        },
        metadata={"target_repr": "hidden_state", "ttt_length": STEPS},
    )
    while True:
        yield batch


def from_files(tokens: int, folder: Path) -> Iterator[Any]:
    """Batches from its own files through its own loader with four workers."""
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.data.utils import DataCollatorWithPadding
    from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
    from specforge.runtime.data_plane.feature_store import LocalFeatureStore
    from specforge.runtime.data_plane.offline_reader import OfflineManifestReader

    rows = folder / "states/rows_0-2000"
    rows.mkdir(parents=True)
    made = sample(tokens)
    for number in range(FILES):
        torch.save(made, rows / f"data_{number}.ckpt")
    refs = OfflineManifestReader(
        str(folder / "states"), run_id="bench", ttt_length=STEPS, max_len=tokens
    ).read()
    loader = FeatureDataLoader(
        LocalFeatureStore("bench"),
        refs=refs,
        batch_size=1,
        collate_fn=DataCollatorWithPadding(),
        per_sample_transform=partial(normalize_offline_sample, max_len=tokens),
        strategy="eagle3",
        num_workers=4,
    )
    while True:
        yield from loader


def measure(core: Any, tokens: int, batches: Iterator[Any]) -> dict[str, Any]:
    """Median time of its step."""
    from specforge.training.strategies.base import StepContext

    def step(number: int) -> Any:
        return core.train_step(next(batches), ctx=StepContext(global_step=number, total_steps=1000))

    for number in range(WARM_UP):
        step(number)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(MEASURED + 1)]
    marks[0].record()
    for number, mark in enumerate(marks[1:]):
        result = step(number)
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    median = times[len(times) // 2]
    return {
        "step_ms": round(median, 2),
        "step_ms_range": [round(times[0], 2), round(times[-1], 2)],
        "tokens_per_s": round(tokens / median * 1e3),
        "mean_tokens_per_s": round(tokens * len(times) / sum(times) * 1e3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "loss": float(result.loss),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tokens", type=int, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()
    torch.manual_seed(0)
    torch.cuda.set_device(DEVICE)
    without_datasets()
    with tempfile.TemporaryDirectory() as folder:
        core = trainer(Path(folder))
        for data in ("gpu", "files"):
            tokens = options.tokens
            batches = on_gpu(tokens) if data == "gpu" else from_files(tokens, Path(folder))
            line = {"tokens": tokens, "data": data, **measure(core, tokens, batches)}
            with options.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
