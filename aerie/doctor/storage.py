"""What the plan needs of the disk, and how fast the disk is."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from aerie.config import ROOT, Config, PathSource
from aerie.doctor.finding import Finding
from aerie.errors import AerieError
from aerie.plan.estimate import estimate
from aerie.plan.facts import read_facts
from aerie.plan.options import find_problems

# Large enough that a cache of the disk is full, small enough for a disk that is slow.
_PROBE_BYTES = 512 << 20
_BLOCK_BYTES = 8 << 20
# Capture waits for the disk below this: Kimi-K2.5 writes 57 KB for every token of an answer.
_SPEED = 1e9
_GB = 1e9


def examine_plan(config: Config) -> Iterator[Finding]:
    """What `make plan` says: whether the states fit the disk, and what else cannot work."""
    try:
        facts = read_facts(config)
        problems = find_problems(config, facts, estimate(config, facts))
    except AerieError as error:
        yield Finding("plan", "miss", error.what, error.remedy or "run `make plan`")
        return
    for problem in problems:
        words = f"{problem.what}: {problem.saw}, expected {problem.expected}"
        yield Finding("plan", "miss", words, "run `make plan`: it lists what would fit")
    if not problems:
        yield Finding("plan", "ok", f"fits, {facts.free / _GB:,.0f} GB free in {config.work}")


def examine_speed(work: Path, size: int = _PROBE_BYTES) -> Iterator[Finding]:
    """How fast `work` takes a file of `size` bytes and gives it back, past the system's cache."""
    work.mkdir(parents=True, exist_ok=True)
    try:
        write, read = measure(work, size)
    except OSError as error:
        remedy = "give a `work` folder that you may write to and that has room"
        yield Finding("disk speed", "miss", f"{work}: {error.strerror}", remedy)
        return
    words = f"writes {write / _GB:,.2f} GB/s, reads {read / _GB:,.2f} GB/s"
    if min(write, read) < _SPEED:
        remedy = (
            f"a local NVMe disk for `work`; below {_SPEED / _GB:,.0f} GB/s capture waits for it"
        )
        yield Finding("disk speed", "note", words, remedy)
    else:
        yield Finding("disk speed", "ok", words)


def measure(folder: Path, size: int) -> tuple[float, float]:
    """Bytes a second written, flush included, and read."""
    # A disk that compresses must not gain by it.
    block = os.urandom(_BLOCK_BYTES)
    with tempfile.TemporaryFile(dir=folder) as stream:
        start = time.perf_counter()
        for _ in range(0, size, _BLOCK_BYTES):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
        written = time.perf_counter() - start
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        stream.seek(0)
        start = time.perf_counter()
        while stream.read(_BLOCK_BYTES):
            pass
        done = time.perf_counter() - start
    return size / written, size / done


def weights_bytes(config: Config) -> int | None:
    """Bytes of the target's weights, or None where they are not on this machine."""
    source = config.target.source
    if not isinstance(source, PathSource):
        return None
    files = (ROOT / source.path).glob("*.safetensors")
    return sum(file.stat().st_size for file in files) or None


def examine_target(config: Config) -> Iterator[Finding]:
    """Whether the target's checkpoint is where the configuration says, and whole."""
    source = config.target.source
    if not isinstance(source, PathSource):
        yield Finding("target", "ok", f"{source.file} of the package {source.package}")
        return
    folder = ROOT / source.path
    missing = [
        name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()
    ]
    size = weights_bytes(config)
    if missing or size is None:
        saw = ", ".join([*missing, *([] if size else ["*.safetensors"])])
        remedy = f"download the checkpoint to {source.path}, or correct target.source.path"
        yield Finding("target", "miss", f"{source.path} lacks {saw}", remedy)
    else:
        yield Finding("target", "ok", f"{size / _GB:,.1f} GB in {source.path}")
