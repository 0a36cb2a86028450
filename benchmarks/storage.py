"""The states store: how fast it writes and reads beside the disk, and what a codec costs.

    python benchmarks/storage.py store --folder /disk/bench --gigabytes 4 --out store.json
    python benchmarks/storage.py codec --work results/demo --folder /tmp/codec --out codec.json

`store` writes and reads states of Kimi-K2.5's size, checksums included, in turn with plain
sequential calls of 16 MiB on the same disk; nothing is read from the page cache. `codec` stores the
states of a build again in each codec, and trains drafts on each with several seeds.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch

from aerie.config import ROOT, load
from aerie.contracts.codecs import Codec, decode, encode
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Sample, StatesFile, StatesWriter, token_bytes
from aerie.contracts.states_index import write_index
from aerie.files import read_json, write_json
from aerie.lock import git_commit
from aerie.states.manifest import read_manifest, write_manifest
from aerie.train.loader import AHEAD

HIDDEN, LAYERS = 7168, 3
SAMPLE_TOKENS = 1024
BLOCK = 1 << 24
CODECS: tuple[Codec, ...] = get_args(Codec)


def main() -> None:
    options = _arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = {"store": store, "codec": codec}[options.figure](options)
    found |= {
        "command": " ".join(sys.argv),
        "commit": git_commit(ROOT),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    write_json(options.out, found)


def store(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes/s of the writer, the reader and the disk, and their ratios, by codec."""
    torch.set_num_threads(1)
    return {codec: _store(options, codec) for codec in CODECS}


def _store(options: argparse.Namespace, codec: Codec) -> dict[str, Any]:
    each = token_bytes(LAYERS * HIDDEN, HIDDEN, codec) * SAMPLE_TOKENS
    count = max(int(options.gigabytes * 1e9) // each, 1)
    path, plain = options.folder / "states.safetensors", options.folder / "plain.bin"
    source = torch.Generator().manual_seed(0)
    sample = Sample(
        torch.arange(SAMPLE_TOKENS, dtype=torch.int32),
        torch.ones(SAMPLE_TOKENS, dtype=torch.uint8),
        torch.randn(SAMPLE_TOKENS, LAYERS * HIDDEN, generator=source).bfloat16(),
        torch.randn(SAMPLE_TOKENS, HIDDEN, generator=source).bfloat16(),
    )
    block = os.urandom(BLOCK)
    rates: dict[str, list[float]] = {
        name: [] for name in ("disk_write", "write", "disk_read", "read")
    }
    for _ in range(options.repeats):
        rates["disk_write"].append(_rate(plain, lambda: _write_plain(plain, block, count * each)))
        rates["write"].append(_rate(path, lambda: _write_states(path, sample, count, codec)))
        for name, file, read in (
            ("disk_read", plain, _read_plain), ("read", path, _read_states)
        ):  # fmt: skip
            _forget(file)
            rates[name].append(_rate(file, partial(read, file)))
    plain.unlink()
    path.unlink()
    ratios = {
        name: statistics.median(
            own / disk for own, disk in zip(rates[name], rates[f"disk_{name}"], strict=True)
        )
        for name in ("write", "read")
    }
    print(codec, {name: f"{ratio:.2f} of the disk" for name, ratio in ratios.items()})
    return {"bytes_per_s": rates, "ratio": ratios, "bytes": count * each}


def _rate(file: Path, work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return file.stat().st_size / (time.perf_counter() - start)


def _write_plain(file: Path, block: bytes, size: int) -> None:
    with file.open("wb", buffering=0) as stream:
        for start in range(0, size, BLOCK):
            stream.write(block[: min(BLOCK, size - start)])
        os.fsync(stream.fileno())


def _write_states(file: Path, sample: Sample, count: int, codec: Codec) -> None:
    widths = (LAYERS * HIDDEN, HIDDEN)
    with StatesWriter(file, [SAMPLE_TOKENS] * count, *widths, "bench", codec) as writer:
        for _ in range(count):
            writer.add(sample)


def _read_plain(file: Path) -> None:
    buffer = bytearray(BLOCK)
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _read_states(file: Path) -> None:
    """As the loader does: sample by sample, copied out of the map, so many threads."""
    from concurrent.futures import ThreadPoolExecutor

    states = StatesFile(file)

    def copy(index: int) -> None:
        found = states.stored(index)
        for tensor in (found.aux, found.last):
            torch.empty_like(tensor).copy_(tensor)

    with ThreadPoolExecutor(AHEAD) as pool:
        for _ in pool.map(copy, range(len(states))):
            pass


def _forget(file: Path) -> None:
    """Drop the file's pages from the cache."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def codec(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes, error and speed of each codec, and the simulated accept length of drafts on each."""
    settings = load(options.config).drafts[options.run]
    target = options.work / "target/target.json"
    found: dict[str, Any] = {name: {"accept_length": []} for name in CODECS}
    exact = read_manifest(options.work / "states/manifest.json")
    for name in CODECS:
        manifest = _copied(exact, options.folder / name / "states", name)
        counts = read_sidecar(manifest, "manifest")["counts"]
        size = sum(path.stat().st_size for path in manifest.parent.rglob("*.safetensors"))
        found[name] |= {"bytes_per_token": size / counts["tokens"], **_errors(exact, name)}
        for seed in range(options.seeds):
            work = options.folder / name / f"seed-{seed}"
            draft = settings.model_copy(update={"seed": seed})
            command = [
                *(sys.executable, str(ROOT / "scripts/draft.py"), "--states", str(manifest)),
                *("--settings", draft.as_json(), "--target", str(target)),
                *("--map", str(options.work / "vocab/map.json")),
                *("--checkpoints", str(work / "checkpoints")),
                *("--out", str(work / "draft.json"), "--log", str(work / "log.txt")),
                *("--threads", str(options.threads)),
            ]
            subprocess.run(command, check=True, cwd=ROOT)
            reached = read_json(work / "eval.json")["epochs"][-1]["overall"]["accept_length"]
            found[name]["accept_length"].append(reached)
            shutil.rmtree(work / "checkpoints", ignore_errors=True)
        print(name, found[name])
    found["speed"] = _speed(options.threads)
    return found


def _copied(indexes: list[Path], folder: Path, codec: Codec) -> Path:
    """The states of `indexes` below `folder`, stored in `codec`; gives the manifest."""
    written = []
    for index in indexes:
        entry = read_json(index)
        out = folder / index.parent.parent.name / index.parent.name / "index.json"
        for name in entry["files"]:
            states = StatesFile(index.parent / name)
            lengths = [end - start for start, end in pairwise(states.offsets)]
            widths = (states.shape("aux")[1], states.shape("last")[1])
            with StatesWriter(out.parent / name, lengths, *widths, name, codec) as writer:
                for sample in states:
                    writer.add(sample)
        files = {name: each["samples"] for name, each in entry["files"].items()}
        layers = Layers(tuple(entry["layers"]["hf_hidden_states"]))
        provenance = entry["provenance"] | {"codec": codec}
        write_index(out, files, layers, entry["counts"], provenance)
        written.append(out)
    write_manifest(written, folder / "manifest.json")
    return folder / "manifest.json"


def _errors(indexes: list[Path], codec: Codec) -> dict[str, Any]:
    """Relative error of each layer over all states: norm of what was lost over norm of all."""
    lost: dict[str, float] = {}
    whole: dict[str, float] = {}
    for sample in _samples(indexes):
        stored = sample.encoded().decoded() if codec != "bf16" else sample
        width = sample.last.shape[1]
        blocks = zip(
            (*sample.aux.split(width, 1), sample.last),
            (*stored.aux.split(width, 1), stored.last), strict=True,
        )  # fmt: skip
        for number, (before, after) in enumerate(blocks):
            name = f"aux {number}" if number < sample.aux.shape[1] // width else "last"
            lost[name] = lost.get(name, 0) + float((after.float() - before.float()).square().sum())
            whole[name] = whole.get(name, 0) + float(before.float().square().sum())
    return {"relative_error": {name: (lost[name] / whole[name]) ** 0.5 for name in lost}}


def _samples(indexes: list[Path]) -> Iterator[Sample]:
    for index in indexes:
        for name in read_json(index)["files"]:
            yield from StatesFile(index.parent / name)


def _speed(threads: int) -> dict[str, float]:
    """Tokens/s of Kimi-K2.5's size that this CPU encodes and decodes to fp8."""
    torch.set_num_threads(threads)
    states = torch.randn(SAMPLE_TOKENS, (LAYERS + 1) * HIDDEN).bfloat16()
    stored = encode(states, HIDDEN)
    found = {}
    for name, work in (
        ("encode", lambda: encode(states, HIDDEN)), ("decode", lambda: decode(*stored))
    ):  # fmt: skip
        times = []
        for _ in range(7):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        found[f"{name}_tokens_per_s"] = SAMPLE_TOKENS / statistics.median(times)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures = parser.add_subparsers(dest="figure", required=True)
    for name in ("store", "codec"):
        figure = figures.add_parser(name)
        figure.add_argument("--folder", type=Path, required=True, help="where files may be written")
        figure.add_argument("--out", type=Path, required=True)
        if name == "store":
            figure.add_argument("--gigabytes", type=float, default=4)
            figure.add_argument("--repeats", type=int, default=3)
        else:
            figure.add_argument("--work", type=Path, default=ROOT / "results/demo")
            figure.add_argument("--config", type=Path, default=ROOT / "demo/config.yaml")
            figure.add_argument("--run", default="main", help="one of `drafts`")
            figure.add_argument("--seeds", type=int, default=3)
            figure.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
