"""The states store: how fast it writes and reads beside the disk, and what a codec costs.

    python benchmarks/storage.py store --folder /disk/bench --gigabytes 4 --out store.json
    python benchmarks/storage.py codec --work results/demo --folder /tmp/codec --out codec.json

`store` writes and reads states of Kimi-K2.5's size, checksums included, in turn with plain
sequential calls of 16 MiB on the same disk, through the page cache and past it (O_DIRECT); nothing
is read from the cache, and what is written is synced. A ratio is to the faster of the two ways.
`codec` stores the states of a build again in each codec, and trains drafts on each with several
seeds; `teacher-64` is the codec teacher with 64 tokens and `aux` in fp8, `teacher-64-bf16` the same
with `aux` as it is.
"""

import argparse
import mmap
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, get_args

import torch

from aerie.config import ROOT
from aerie.contracts.codecs import Codec, Rounding
from aerie.contracts.states import Sample, StatesFile, Stretch, token_bytes
from aerie.contracts.states_writer import StatesWriter
from aerie.files import write_json
from aerie.lock import git_commit
from aerie.train.loader import AHEAD
from benchmarks.codecs import CODECS, HIDDEN, LAYERS, SAMPLE_TOKENS, codec

BLOCK = 1 << 24
ROUNDINGS: tuple[Rounding, ...] = get_args(Rounding)


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
    """Rate and processor time of the writer, the reader and the disk, and ratios, by codec."""
    torch.set_num_threads(1)
    return {codec: _store(options, codec) for codec in ROUNDINGS}


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
    size = count * each
    writes = {
        "disk_write": partial(_write_plain, plain, size, 0),
        "disk_write_direct": partial(_write_plain, plain, size, os.O_DIRECT),
        "write": partial(_write_states, path, sample, count, codec),
    }
    reads = {
        "disk_read": partial(_read_plain, plain, 0),
        "disk_read_direct": partial(_read_plain, plain, os.O_DIRECT),
        "read": partial(_read_states, path, SimpleQueue()),
    }
    rates: dict[str, list[float]] = {}
    cores: dict[str, list[float]] = {}
    # The first pass allocates, and counts in nothing.
    for number in range(options.repeats + 1):
        for name, work in {**writes, **reads}.items():
            file = plain if name.startswith("disk") else path
            if name in writes:
                file.unlink(missing_ok=True)
            else:
                _forget(file)
            rate, core = _measure(file, work)
            if number:
                rates.setdefault(name, []).append(rate)
                cores.setdefault(name, []).append(core)
    plain.unlink()
    path.unlink()
    ratios = {name: _ratios(rates, name) for name in ("write", "read")}
    for name, (ratio, disk) in ratios.items():
        print(f"{codec}: {name} at {ratio:.2f} of {disk}")
    return {
        "bytes_per_s": rates,
        "core_s_per_gb": {name: statistics.median(each) for name, each in cores.items()},
        "ratio": {name: {"of": disk, "median": ratio} for name, (ratio, disk) in ratios.items()},
        "bytes": size,
    }


def _ratios(rates: dict[str, list[float]], name: str) -> tuple[float, str]:
    """The median over the pairs with the disk's faster way, and that way's name."""
    disk = max((f"disk_{name}", f"disk_{name}_direct"), key=lambda way: sum(rates[way]))
    pairs = zip(rates[name], rates[disk], strict=True)
    return statistics.median(own / plain for own, plain in pairs), disk


def _measure(file: Path, work: Callable[[], None]) -> tuple[float, float]:
    """The rate of `work` in bytes/s, and what it takes of a core in s a GB of `file`."""
    start, used = time.perf_counter(), time.process_time()
    work()
    passed, used = time.perf_counter() - start, time.process_time() - used
    size = file.stat().st_size
    return size / passed, used * 1e9 / size


def _write_plain(file: Path, size: int, flag: int) -> None:
    # O_DIRECT wants whole sectors in memory that begins with a page.
    block = mmap.mmap(-1, BLOCK)
    block.write(bytes(range(256)) * (BLOCK // 256))
    size = size // mmap.PAGESIZE * mmap.PAGESIZE
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | flag)
    with memoryview(block) as view:
        for start in range(0, size, BLOCK):
            left = view[: min(BLOCK, size - start)]
            while left:
                left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
        os.close(descriptor)


def _write_states(file: Path, sample: Sample, count: int, codec: Codec) -> None:
    widths = (LAYERS * HIDDEN, HIDDEN)
    with StatesWriter(file, [SAMPLE_TOKENS] * count, *widths, "bench", codec) as writer:
        for _ in range(count):
            writer.add(sample)


def _read_plain(file: Path, flag: int) -> None:
    descriptor, buffer = os.open(file, os.O_RDONLY | flag), mmap.mmap(-1, BLOCK)
    while os.readv(descriptor, [buffer]):
        pass
    os.close(descriptor)


def _read_states(file: Path, free: "SimpleQueue[dict[str, Stretch]]") -> None:
    """As the loader does: so many threads, each into memory that is there and is used again."""
    states = StatesFile(file)
    if free.empty():
        for _ in range(AHEAD):
            free.put({
                name: Stretch(like.new_zeros(SAMPLE_TOKENS, *like.shape[1:]))
                for name, like in states.like.items()
            })  # fmt: skip

    def read(index: int) -> None:
        memory = free.get()
        states.read(index, memory)
        free.put(memory)

    with ThreadPoolExecutor(AHEAD) as pool:
        for _ in pool.map(read, range(len(states))):
            pass


def _forget(file: Path) -> None:
    """Drop the file's pages from the cache."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


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
            figure.add_argument("--codecs", nargs="+", choices=CODECS, default=[*CODECS])
            figure.add_argument("--epochs", type=int, help="default: the configuration's")
            figure.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
