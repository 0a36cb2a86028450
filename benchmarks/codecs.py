"""What a codec of states costs: bytes, error, speed, and the drafts that are trained on it.

The figure `codec` of benchmarks/storage.py.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from aerie.config import ROOT, load
from aerie.contracts import teacher
from aerie.contracts.codecs import Codec, Teacher, decode, encode
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Sample, StatesFile
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.contracts.vocab import read_vouched_map
from aerie.files import read_json, write_json
from aerie.states.manifest import read_manifest, write_manifest
from aerie.target import read_target
from aerie.target_weights import read_head
from aerie.train.objective import Frozen, teacher_shares
from aerie.train.packing import make_pack
from aerie.train.settings import DraftSettings
from aerie.train.start import freeze

HIDDEN, LAYERS = 7168, 3
SAMPLE_TOKENS = 1024
# The codecs of the study: what a file is written with, by its name in the figures.
CODECS: dict[str, tuple[Codec, Teacher]] = {
    "bf16": ("bf16", Teacher()),
    "fp8": ("fp8", Teacher()),
    **{f"teacher-{k}": ("teacher", Teacher(k)) for k in (16, 64, 256)},
    "teacher-64-bf16": ("teacher", Teacher(64, "bf16")),
}
# What a large target's head makes of one row is a thousand times what rounding a row takes.
TEACHER_TOKENS = 64
KIMI_VOCABULARY, KIMI_MAP = 163840, 32000


def codec(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes, error and speed of each codec, and the simulated accept length of drafts on each."""
    torch.set_num_threads(options.threads)
    settings = load(options.config).drafts[options.run]
    settings = settings.model_copy(update={"epochs": options.epochs or settings.epochs})
    target = read_target(options.work / "target/target.json")
    vocab = read_vouched_map(options.work / "vocab/map.json")
    head = read_head(target)
    frozen = freeze(target, vocab, torch.float32, torch.device("cpu"))
    exact = read_manifest(options.work / "states/manifest.json")
    found: dict[str, Any] = {}
    for name in options.codecs:
        # A study that was stopped continues in its folder.
        figures = options.folder / name / "figures.json"
        if not figures.exists():
            manifest = _copied(exact, options.folder / name / "states", name, head)
            counts = read_sidecar(manifest, "manifest")["counts"]
            size = sum(path.stat().st_size for path in manifest.parent.rglob("*.safetensors"))
            reached = [_trained(options, settings, manifest, seed) for seed in range(options.seeds)]
            errors = _errors(exact, read_manifest(manifest), frozen)
            bytes_ = {"bytes_per_token": size / counts["tokens"]}
            write_json(figures, {"accept_length": reached, **bytes_, **errors})
        found[name] = read_json(figures)
        print(name, found[name], flush=True)
    return found | {"speed": _speed(), "teacher_speed": _teacher_speed(), "epochs": settings.epochs}


def _trained(
    options: argparse.Namespace, settings: DraftSettings, manifest: Path, seed: int
) -> float:
    """Simulated accept length on the held-out samples of a draft trained on these states."""
    work = manifest.parents[1] / f"seed-{seed}"
    draft = settings.model_copy(update={"seed": seed})
    command = [
        *(sys.executable, str(ROOT / "scripts/draft.py"), "--states", str(manifest)),
        *("--settings", draft.as_json(), "--target", str(options.work / "target/target.json")),
        *("--map", str(options.work / "vocab/map.json")),
        *("--checkpoints", str(work / "checkpoints")),
        *("--out", str(work / "draft.json"), "--log", str(work / "log.txt")),
        *("--threads", str(options.threads)),
    ]
    if not (work / "draft.json").exists():
        subprocess.run(command, check=True, cwd=ROOT)
    shutil.rmtree(work / "checkpoints", ignore_errors=True)
    length: float = read_json(work / "eval.json")["epochs"][-1]["overall"]["accept_length"]
    return length


def _stored(sample: Sample, name: str, head: torch.Tensor) -> Sample:
    """A sample in bf16 as the writer takes it for the codec `name`."""
    kind, setting = CODECS[name]
    if kind != "teacher":
        return sample
    ids, logprobs, tail = teacher.encode(sample.final(), head, setting.k)
    return replace(sample, last=None, top_ids=ids, top_logprobs=logprobs, tail=tail)


def _copied(indexes: list[Path], folder: Path, name: str, head: torch.Tensor) -> Path:
    """The states of `indexes` below `folder`, stored in the codec `name`; gives the manifest."""
    written, (kind, setting) = [], CODECS[name]
    for index in indexes:
        entry = read_json(index)
        out = folder / index.parent.parent.name / index.parent.name / "index.json"
        for file in entry["files"]:
            states = StatesFile(index.parent / file)
            lengths = [end - start for start, end in pairwise(states.offsets)]
            widths = (states.shape("aux")[1], states.shape("last")[1])
            with StatesWriter(
                out.parent / file, lengths, *widths, file, kind, setting
            ) as writer:  # fmt: skip
                for sample in states:
                    writer.add(_stored(sample, name, head))
        files = {file: each["samples"] for file, each in entry["files"].items()}
        layers = Layers(tuple(entry["layers"]["hf_hidden_states"]))
        write_index(out, files, layers, entry["counts"], entry["provenance"] | {"codec": kind})
        written.append(out)
    write_manifest(written, folder / "manifest.json")
    return folder / "manifest.json"


def _errors(exact: list[Path], stored: list[Path], frozen: Frozen) -> dict[str, Any]:
    """What was lost, over all states.

    `relative_error` of each layer: norm of what was lost over norm of all. `total_variation`: half
    the sum of differences of the teacher's distribution over the map, over all supervised rows.
    """
    lost: dict[str, float] = {}
    whole: dict[str, float] = {}
    distances, tails = [], []
    for before, after in zip(_samples(exact), _samples(stored), strict=True):
        width = before.final().shape[1]
        pairs = dict(
            zip(
                (f"aux {number}" for number in range(before.aux.shape[1] // width)),
                zip(before.aux.split(width, 1), after.aux.split(width, 1), strict=True),
                strict=True,
            )
        )
        if after.last is not None:
            pairs["last"] = (before.final(), after.last)
        for name, (old, new) in pairs.items():
            lost[name] = lost.get(name, 0) + float((new.float() - old.float()).square().sum())
            whole[name] = whole.get(name, 0) + float(old.float().square().sum())
        packs = [make_pack([each]) for each in (before, after)]
        shares = [teacher_shares(frozen, pack)[: sum(pack.answers)] for pack in packs]
        distances.append((shares[0] - shares[1]).abs().sum(1) / 2)
        if packs[1].tail is not None:
            tails.append(packs[1].tail[: sum(packs[1].answers), 0])
    each = torch.cat(distances)
    figures: dict[str, Any] = {
        "relative_error": {name: (lost[name] / whole[name]) ** 0.5 for name in lost},
        "total_variation": {
            "mean": float(each.mean()),
            "median": float(each.median()),
            "p99": float(each.quantile(0.99)),
            "largest": float(each.max()),
        },
    }
    if tails:
        figures["mean_tail"] = float(torch.cat(tails).mean())
    return figures


def _samples(indexes: list[Path]) -> Iterator[Sample]:
    for index in indexes:
        for name in read_json(index)["files"]:
            yield from StatesFile(index.parent / name)


def _speed() -> dict[str, float]:
    """Tokens/s of Kimi-K2.5's size that this CPU encodes and decodes to fp8."""
    states = torch.randn(SAMPLE_TOKENS, (LAYERS + 1) * HIDDEN).bfloat16()
    stored = encode(states, HIDDEN)
    return {
        "encode_tokens_per_s": SAMPLE_TOKENS / _median(lambda: encode(states, HIDDEN), 7),
        "decode_tokens_per_s": SAMPLE_TOKENS / _median(lambda: decode(*stored), 7),
    }


def _teacher_speed() -> dict[str, float]:
    """Tokens/s of Kimi-K2.5's size that this CPU turns into the 64 likeliest tokens, and those into
    the distribution over a map of 32,000. Random states: the work does not depend on them.
    """
    last = torch.randn(TEACHER_TOKENS, HIDDEN).bfloat16()
    head = torch.empty(KIMI_VOCABULARY, HIDDEN, dtype=torch.bfloat16).normal_(0, 0.02)
    draft_ids = torch.full((KIMI_VOCABULARY,), -1)
    draft_ids[torch.randperm(KIMI_VOCABULARY)[:KIMI_MAP]] = torch.arange(KIMI_MAP)
    kept = teacher.encode(last, head, Teacher().k)
    decoding = partial(teacher.decode, *kept, draft_ids, KIMI_MAP, torch.float32)
    encoding = partial(teacher.encode, last, head, Teacher().k)
    return {
        "encode_tokens_per_s": TEACHER_TOKENS / _median(encoding, 3),
        "decode_tokens_per_s": TEACHER_TOKENS / _median(decoding, 7),
    }


def _median(work: Callable[[], object], times: int) -> float:
    """Seconds of the median of `times` calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
