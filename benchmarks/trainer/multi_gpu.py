"""Aerie's training step on 1, 2, 4, ... GPUs of one host, in each layout, in one run.

    torchrun --standalone --nproc-per-node N benchmarks/trainer/multi_gpu.py --out OUT.json
    torchrun --standalone --nproc-per-node 2 benchmarks/trainer/multi_gpu.py --tiny --out OUT.json

The second runs anywhere, with gloo. Needs torch with Triton, numpy, safetensors, xxhash and rich;
4 GB of disk. Each rank has one sample of 8,192 tokens a step, synthetic, 60 % of it supervised. A
measurement that would begin after `--seconds` is left out. OUT is written after each:

- `step_ms`: median on the slowest rank, data on the GPU. `efficiency`: its tokens/s over N times
  those of one GPU alone, in the same run.
- `communication_share`: of `step_ms`, what the same step saves whose collectives are replaced by
  copies inside each GPU. The copies (what a rank would get, from itself) count as computing.
- `files_step_ms`: the same, read from a states file by the loader; `waiting_share`: what of it goes
  beyond `step_ms`. `host_waiting_share`: the time that the host stood still for data; it runs ahead
  of the GPU, so not all of it is lost.
- `losses`: of a few steps, on one GPU that accumulates the packs of all, and on all.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, pairwise, repeat
from pathlib import Path
from typing import Any

# NVLink multicast can put the GPUs of a shared host out of service; set before NCCL reads it.
os.environ["NCCL_NVLS_ENABLE"] = "0"

import torch
from run import sources
from sizes import (
    CONFIG,
    DECAY,
    STEPS,
    SUPERVISED,
    Weights,
    new_frozen,
    new_sample,
    new_weights,
    write_states,
)
from torch import Tensor
from torch import distributed as dist

from aerie.contracts.states import Sample
from aerie.train.layout import new_layout
from aerie.train.loader import Loader
from aerie.train.packing import Pack, make_pack
from aerie.train.ranks import Ranks
from aerie.train.step import take_step

LAYOUTS = ("none", "optimizer", "full")
WARM_UP, MEASURED, SAMPLES = 3, 8, 8
LOSS_STEPS, LOSS_RATE = 6, 1e-4


@dataclass(frozen=True)
class Settings:
    """What a step reads of `DraftSettings`."""

    sharding: str = "none"
    activation_checkpointing: bool = False
    fp8: bool = False
    steps: int = STEPS
    decay: float = DECAY
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    dtype: str = "bfloat16"


class Done:
    """Work that is over."""

    def wait(self) -> None:
        """Nothing to wait for."""


@dataclass(frozen=True)
class Silent(Ranks):
    """Ranks that send nothing: what others would send is what this one has."""

    def sum_(self, tensor: Tensor) -> None:
        """Leave it."""

    def begin_scatter(self, mine: Tensor, whole: Tensor) -> Done:
        """Copy this rank's part."""
        mine.copy_(whole.view(self.world, -1)[self.rank])
        return Done()

    def begin_gather(self, whole: Tensor, mine: Tensor) -> Done:
        """Put it in the place of all: memory that was freed must not hold anything."""
        whole.view(self.world, -1).copy_(mine)
        return Done()


@dataclass
class Bench:
    """This process, what all measurements share, and the results so far."""

    options: argparse.Namespace
    rank: int
    world: int
    device: torch.device
    control: dist.ProcessGroup
    folder: Path
    groups: dict[int, dist.ProcessGroup]
    started: float = field(default_factory=time.perf_counter)
    runs: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tiny = {"hidden_size": 128, "intermediate_size": 256, "heads": 4, "kv_heads": 4,
                "head_dim": 32, "vocab_size": 2000, "draft_vocab_size": 512}  # fmt: skip
        self.config = replace(CONFIG, **tiny) if self.options.tiny else CONFIG
        self.tokens = [256, 512] if self.options.tiny else [8192, 20480]
        torch.manual_seed(0)
        self.frozen = new_frozen(self.config, self.device)

    def ranks(self, count: int) -> Ranks:
        """The first `count` of all."""
        return Ranks(self.rank, count, self.device, self.groups[count] if count > 1 else None)

    def everyone(self, mine: Any) -> list[Any]:
        """What each process has; processes that measure nothing wait here, their GPU idle."""
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine, group=self.control)
        return found

    def in_time(self) -> bool:
        """Whether the first process has time for another measurement."""
        return self.everyone(time.perf_counter() - self.started)[0] < self.options.seconds

    def pack(self, tokens: int, seed: int) -> Pack:
        """One sample of random states, on the device, where they are drawn faster too."""
        torch.manual_seed(seed)
        with self.device:
            drawn = new_sample(self.config, tokens)
        held = {name: each.cpu() for name, each in vars(drawn).items() if each is not None}
        sample = Sample(**held)
        return make_pack([sample], tokens).to(self.device)

    def stepper(self, ranks: Ranks, settings: Settings) -> Callable[[list[Pack], float], Tensor]:
        """A step of a new draft, the same on each rank, over the packs of all `ranks`."""
        torch.manual_seed(0)
        start = new_weights(self.config, self.device).flat.float()
        layout = new_layout(settings, Weights(self.config, start), ranks)

        def step(packs: list[Pack], rate: float) -> Tensor:
            counts = [
                ranks.world * sum(pack.count(number) for pack in packs) for number in range(STEPS)
            ]
            return take_step(
                settings, layout, self.frozen, ranks, packs, counts, rate, len(packs)
            )  # fmt: skip

        return step

    def write(self) -> None:
        """Write all results."""
        gpu = torch.cuda.get_device_name(0) if self.device.type == "cuda" else "cpu"
        results = {
            "gpu": gpu,
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu != "cpu" else None,
            "nvlink_multicast": False,
            "supervised": SUPERVISED,
            "aerie_commit": self.options.commit,
            "aerie_sources": sources(),
            "command": "torchrun --standalone --nproc-per-node N benchmarks/trainer/multi_gpu.py",
            "seconds": round(time.perf_counter() - self.started),
            "runs": self.runs,
            "losses": self.losses,
        }
        self.options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")

    def report(self, results: list[dict[str, Any]], result: dict[str, Any]) -> None:
        """Add one result on the first process, and write all."""
        if self.rank == 0:
            results.append(result)
            print(json.dumps(result), f"{time.perf_counter() - self.started:.0f} s", flush=True)
            self.write()


def free(device: torch.device) -> None:
    """Give back the memory of what is gone, and count its peak anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def times_ms(
    step: Callable[[list[Pack], float], Tensor], packs: Iterator[list[Pack]], device: torch.device,
    measured: int,
) -> list[float]:  # fmt: skip
    """Times of `measured` steps, one after the other without a pause."""
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for each in islice(packs, measured):
            step(each, 1e-4)
            marks.append(time.perf_counter())
        return [(after - before) * 1e3 for before, after in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(measured + 1)]
    events[0].record()
    for event, each in zip(events[1:], packs, strict=False):
        step(each, 1e-4)
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in pairwise(events)]


def median_ms(bench: Bench, ranks: Ranks, settings: Settings, tokens: int) -> dict[str, Any]:
    """Step times of one rank with data on the GPU, and its peak memory."""
    free(bench.device)
    packs = repeat([bench.pack(tokens, 1 + ranks.rank)])
    step = bench.stepper(ranks, settings)
    measured = MEASURED if tokens == bench.tokens[0] else MEASURED // 2
    for each in islice(packs, WARM_UP - 1):
        step(each, 1e-4)
    if bench.device.type == "cuda":
        # A new draft is whole for a moment; the peak is that of the steps.
        torch.cuda.synchronize(bench.device)
        torch.cuda.reset_peak_memory_stats(bench.device)
    times_ms(step, packs, bench.device, 1)
    times = times_ms(step, packs, bench.device, measured)
    peak = torch.cuda.max_memory_allocated(bench.device) if bench.device.type == "cuda" else 0
    return {"ms": statistics.median(times), "range": [min(times), max(times)], "peak": peak}


def files_ms(bench: Bench, ranks: Ranks, settings: Settings, tokens: int) -> dict[str, Any]:
    """Step times of one rank from a states file, and the share that its host waited."""
    free(bench.device)
    samples = locate_states(bench)
    order = islice(cycle(samples), ranks.rank, ranks.rank + WARM_UP + MEASURED)
    loader = Loader([[[sample]] for sample in order], tokens, bench.device)
    step, packs = bench.stepper(ranks, settings), iter(loader)
    times_ms(step, packs, bench.device, WARM_UP)
    start, waited = time.perf_counter(), loader.waited
    times = times_ms(step, packs, bench.device, MEASURED)
    share = (loader.waited - waited) / (time.perf_counter() - start)
    return {"ms": statistics.median(times), "host_waiting_share": share}


def locate_states(bench: Bench) -> list[Any]:
    """The samples that the first process wrote."""
    from aerie.train.data import locate

    return locate([bench.folder / "states/bench/000/index.json"])


def measure(bench: Bench, count: int, settings: Settings, tokens: int) -> None:
    """Measure one layout on the first `count` ranks."""
    ranks, mine = bench.ranks(count), {}
    if bench.rank < count:
        mine["gpu"] = median_ms(bench, ranks, settings, tokens)
        if tokens == bench.tokens[0]:
            mine["files"] = files_ms(bench, ranks, settings, tokens)
            if count > 1:
                silent = Silent(ranks.rank, count, bench.device)
                mine["silent"] = median_ms(bench, silent, settings, tokens)
        free(bench.device)
    found = bench.everyone(mine)[:count]
    if bench.rank == 0:
        bench.report(bench.runs, row(bench, count, settings, tokens, found))


def row(
    bench: Bench, count: int, settings: Settings, tokens: int, found: list[dict[str, Any]]
) -> dict[str, Any]:
    """One entry of the results from what the ranks found: the slowest one counts."""

    def slowest(kind: str) -> float:
        return max(each[kind]["ms"] for each in found)

    ms = slowest("gpu")
    result: dict[str, Any] = {
        "gpus": count,
        "sharding": settings.sharding,
        "activation_checkpointing": settings.activation_checkpointing,
        "tokens_per_gpu": tokens,
        "step_ms": round(ms, 2),
        "step_ms_range": [round(each, 2) for each in found[0]["gpu"]["range"]],
        "tokens_per_s": round(count * tokens / ms * 1e3),
        "peak_gib": round(max(each["gpu"]["peak"] for each in found) / 2**30, 2),
    }
    same = ("tokens_per_gpu", "activation_checkpointing")
    alone = [each for each in bench.runs if each["gpus"] == 1]
    alone = [each for each in alone if all(each[name] == result[name] for name in same)]
    if alone and count > 1:
        result["efficiency"] = round(result["tokens_per_s"] / count / alone[0]["tokens_per_s"], 4)
    if "silent" in found[0]:
        result["silent_step_ms"] = round(slowest("silent"), 2)
        result["communication_share"] = round(1 - slowest("silent") / ms, 4)
    if "files" in found[0]:
        waiting = max(each["files"]["host_waiting_share"] for each in found)
        result["files_step_ms"] = round(slowest("files"), 2)
        result["waiting_share"] = round(1 - ms / slowest("files"), 4)
        result["host_waiting_share"] = round(waiting, 4)
    return result


def compare_losses(bench: Bench) -> None:
    """Losses of the same steps: one GPU that accumulates, and each layout on all."""
    tokens = bench.tokens[0] // 4
    alone: list[float] = []
    most = max(bench.groups, default=1)
    for count, sharding in ((1, "none"), *((most, each) for each in LAYOUTS)):
        losses: list[float] = []
        if bench.rank < count:
            free(bench.device)
            mine = range(most) if count == 1 else [bench.rank]
            packs = [bench.pack(tokens, 100 + number) for number in mine]
            step = bench.stepper(bench.ranks(count), Settings(sharding))
            losses = [float(step(packs, LOSS_RATE)[2]) for _ in range(LOSS_STEPS)]
            del packs, step
        losses = bench.everyone(losses)[0]
        alone = alone or losses
        difference = max(abs(saw - one) / one for saw, one in zip(losses, alone, strict=True))
        result = {"gpus": count, "sharding": sharding, "losses": losses}
        bench.report(bench.losses, result | {"largest_relative_difference": difference})
    free(bench.device)


def measure_all(bench: Bench) -> None:
    """Every measurement, those that matter most first."""
    tokens, long = bench.tokens
    most, layouts = max(bench.groups, default=1), LAYOUTS if bench.groups else ()
    plan = [(1, Settings(), tokens)]
    plan += [(most, Settings(sharding), tokens) for sharding in layouts]
    for count, sharding in ((1, "none"), *((most, each) for each in layouts)):
        plan += [(count, Settings(sharding, again), long) for again in (False, True)]
    fewer = [count for count in reversed(bench.groups) if count < most]
    plan += [(count, Settings(sharding), tokens) for count in fewer for sharding in layouts]
    for number, (count, settings, length) in enumerate(plan):
        if number == 1 + len(layouts) and bench.in_time():
            compare_losses(bench)
        if not bench.in_time():
            print("out of time:", count, settings, length, flush=True)
            break
        measure(bench, count, settings, length)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--seconds", type=float, default=360, help="begin nothing after them")
    arguments.add_argument("--tiny", action="store_true", help="a small draft, on any machine")
    arguments.add_argument("--commit", default="", help="of Aerie, where there is no git")
    options = arguments.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    sizes = [2**power for power in range(1, world.bit_length()) if 2**power <= world]
    groups = {size: dist.new_group([*range(size)]) for size in sizes}
    with tempfile.TemporaryDirectory() as scratch:
        control = dist.new_group(backend="gloo")
        shared: list[Any] = [scratch]
        dist.broadcast_object_list(shared, group=control)
        bench = Bench(options, rank, world, device, control, Path(shared[0]), groups)
        if rank == 0:
            write_states(bench.config, bench.folder, bench.tokens[0], SAMPLES)
        bench.everyone(None)
        measure_all(bench)
        # The folder goes when all are done with it.
        bench.everyone(None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
