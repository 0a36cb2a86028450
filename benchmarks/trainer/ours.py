"""Time Aerie's own training step, with data on the GPU and from states files, and in fp8.

python benchmarks/trainer/ours.py --tokens 2048 4096 8192 --out results.jsonl
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import torch
from sizes import (
    CONFIG,
    DECAY,
    STEPS,
    Weights,
    new_frozen,
    new_sample,
    new_weights,
    write_states,
)

from aerie.train.data import Located
from aerie.train.loader import Loader
from aerie.train.objective import objective
from aerie.train.optimizer import AdamW
from aerie.train.packing import Pack, make_pack

DEVICE = torch.device("cuda")
WARM_UP, MEASURED, FILES = 4, 12, 16


class Step:
    """A draft of random weights, trained step by step."""

    def __init__(self) -> None:
        self.fp8 = False
        torch.manual_seed(0)
        self.weights = new_weights(CONFIG, DEVICE)
        self.gradient = Weights.zeros(CONFIG, torch.bfloat16, DEVICE)
        self.frozen = new_frozen(CONFIG, DEVICE)
        master = self.weights.flat.float()
        self.optimizer = AdamW(master, self.weights.flat, (0.9, 0.95), 0.0, 0.5)

    def __call__(self, pack: Pack) -> torch.Tensor:
        result = objective(
            self.weights, self.gradient, self.frozen, pack, STEPS, DECAY, fp8=self.fp8
        )
        self.optimizer.step(self.gradient.flat, result.loss, 1e-4)
        return result.loss


def measure(step: Step, tokens: int, packs: Iterator[Pack]) -> dict[str, Any]:
    """Median time of a step, fed from `packs`."""
    for _ in range(WARM_UP):
        step(next(packs))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(MEASURED + 1)]
    marks[0].record()
    for mark in marks[1:]:
        loss = step(next(packs))
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
        "loss": float(loss),
    }


def forget(file: Path) -> None:
    """Drop the file from the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def reading(samples: list[Located], tokens: int) -> dict[str, float]:
    """GB/s of reading the file in order, and of the loader alone, both from a cold cache."""
    file = samples[0].file
    size = file.stat().st_size
    forget(file)
    start = time.perf_counter()
    with file.open("rb", buffering=0) as stream:
        buffer = bytearray(1 << 23)
        while stream.readinto(buffer):
            pass
    sequential = size / (time.perf_counter() - start) / 1e9
    forget(file)
    start = time.perf_counter()
    for _ in Loader([[[sample]] for sample in samples], tokens, DEVICE):
        pass
    torch.cuda.synchronize()
    loader = size / (time.perf_counter() - start) / 1e9
    return {"sequential_gb_s": round(sequential, 2), "loader_gb_s": round(loader, 2)}


def write(out: Path, line: dict[str, Any]) -> None:
    """Add one line to the results."""
    with out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096, 8192])
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()
    step = Step()
    for tokens in options.tokens:
        pack = make_pack([new_sample(CONFIG, tokens)], tokens).to(DEVICE)
        found = {"gpu": measure(step, tokens, repeat(pack))}
        with tempfile.TemporaryDirectory() as folder:
            samples = write_states(CONFIG, Path(folder), tokens, FILES)
            loader = Loader([[[sample]] for sample in samples], tokens, DEVICE)
            start = time.perf_counter()
            found["files"] = measure(step, tokens, (packs[0] for packs in loader))
            found["files"]["waited_share"] = loader.waited / (time.perf_counter() - start)
            found["files"] |= reading(samples, tokens)
        for data, result in found.items():
            write(options.out, {"tokens": tokens, "data": data, "fp8": False, **result})
        step.fp8 = True
        result = measure(step, tokens, repeat(pack))
        write(options.out, {"tokens": tokens, "data": "gpu", "fp8": True, **result})
        step.fp8 = False


if __name__ == "__main__":
    main()
