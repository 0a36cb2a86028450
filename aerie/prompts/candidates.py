"""Candidates: all distinct prompts of one dataset, in the order in which they are taken.

The order and the choice among duplicates follow from content alone: neither the order of files and
rows, nor how many processes read them, nor what other datasets hold has a part in them.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from aerie.contracts.candidates import write_index
from aerie.contracts.prompts import PROMPTS, REJECTS, Reason
from aerie.contracts.sidecar import read_sidecar, write_sidecar
from aerie.contracts.tables import write_tables
from aerie.errors import DataError, GateError
from aerie.files import digest_file
from aerie.processes import die_with_parent
from aerie.progress import Progress
from aerie.prompts.adapters import Adapter, adapter
from aerie.prompts.contamination import Contamination, read_benchmark
from aerie.prompts.distinct import Verdict, decide
from aerie.prompts.limits import TargetLimits
from aerie.prompts.rows import Piece, Reader
from aerie.prompts.source import Slice, Source
from aerie.prompts.spill import Spill
from aerie.prompts.text import head
from aerie.target import Target

DUPLICATES = (Reason.DUPLICATE, Reason.NEAR_DUPLICATE)
# Starting processes takes longer than reading fewer rows than these.
_FEW_ROWS = 20_000


@dataclass(frozen=True)
class Settings:
    """What decides a dataset's candidates: its place in the mix does not, nor does its take.

    `files` are patterns in place of the adapter's. `origin` is the sidecar of a copy that was
    fetched from the Hub, `benchmarks` are files of prompts that must not be trained on.
    """

    name: str
    adapter: str
    path: Path
    files: tuple[str, ...] | None = None
    origin: Path | None = None
    benchmarks: tuple[Path, ...] = ()
    max_rejected_share: float = 0.5
    max_tokens: int = 8192
    max_turns: int = 4
    seed: int = 0


def build(settings: Settings, target: Target, out: Path, processes: int = 1) -> dict[str, Any]:
    """Write `candidates.parquet`, `rejects.parquet`, the index and `candidates.json` to `out`.

    Returns the sidecar.

    Raises:
        ConfigError: there is no such adapter.
        DataError: the dataset or a benchmark is missing, damaged or of another schema.
        GateError: more of the dataset's rows are rejected than the settings allow.
    """
    reader = adapter(settings.adapter)
    source = Source(settings.path, reader, settings.files)
    limits = TargetLimits.of(target, settings.max_tokens)
    files = {name: out / f"{name}.parquet" for name in ("candidates", "rejects")}
    index_file = out / "candidates.safetensors"
    with _scratch_folder(out) as scratch:
        pieces = read(settings, source, limits, scratch, processes)
        verdict = decide(pieces, settings.name, settings.seed)
        spill = Spill(scratch, pieces, settings.name)
        write_tables(files["rejects"], spill.rejects(verdict), REJECTS)
        counts = _counts(pieces, verdict)
        check_rejected_share(settings, counts, files["rejects"])
        write_tables(files["candidates"], spill.candidates(verdict), PROMPTS)
        write_index(index_file, verdict.index)
        counts |= spill.totals()
    return write_sidecar(
        out / "candidates.json",
        "candidates",
        [*files.values(), index_file],
        counts,
        _provenance(settings, reader, source, target),
    )


def read(
    settings: Settings, source: Source, limits: TargetLimits, scratch: Path, processes: int
) -> list[Piece]:
    """Read all slices of `source`; what they hold is left in `scratch`.

    Raises:
        DataError: a file is damaged, or lacks a column, or there are no rows.
    """
    # A text at a time is no work for the tokenizer's own threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = [entry for file in settings.benchmarks for entry in read_benchmark(file)]
    reader = Reader(source, limits, Contamination(texts), settings.max_turns, scratch)
    slices = source.slices()
    total = sum(piece.rows for piece in slices)
    processes = min(processes, len(slices)) if total > _FEW_ROWS else 1
    pieces = []
    with Progress(f"candidates {settings.name}", total) as progress:
        for slice_, piece in zip(slices, _read(reader, slices, processes), strict=True):
            pieces.append(piece)
            progress.advance(slice_.rows)
    for file in source.files:
        pairs = zip(slices, pieces, strict=True)
        seen = [piece.seen for slice_, piece in pairs if slice_.file == file]
        source.check_columns(file, set().union(*seen))
    if not any(piece.rows for piece in pieces):
        raise DataError(
            f"{settings.path} holds no row of {source.adapter.id}",
            saw="only blank lines and empty tables in " + ", ".join(map(source.name, source.files)),
            remedy="correct `path` or `files` of the dataset, or leave it out of the mix",
        )
    return pieces


def check_rejected_share(settings: Settings, counts: dict[str, Any], rejects: Path) -> None:
    """Stop when a dataset loses too much.

    A duplicate is not a loss, since its text is a candidate.

    Raises:
        GateError: with the counts of all reasons and an example of each.
    """
    lost = {name: count for name, count in counts["rejects"].items() if name not in DUPLICATES}
    share = sum(lost.values()) / counts["rows"]
    if share <= settings.max_rejected_share:
        return
    table = pq.read_table(rejects)
    examples = {
        reason: table.slice(pc.index(table["reason"], reason).as_py(), 1).to_pylist()[0]
        for reason in lost
    }
    seen = "".join(
        f"\n    {count:,} x {reason}, as {examples[reason]['id']}: "
        f"{examples[reason]['detail']} | {head(examples[reason]['text'], 60)}"
        for reason, count in sorted(lost.items(), key=lambda entry: -entry[1])
    )
    raise GateError(
        "prompts",
        f"{sum(lost.values()):,} of {counts['rows']:,} rows of {settings.name} were rejected",
        saw=f"a share of {share:.3f}{seen}",
        expected=f"at most {settings.max_rejected_share} (max_rejected_share)",
        remedy="correct the dataset or its adapter; if these reasons are expected, raise "
        f"max_rejected_share of {settings.name}",
    )


def _read(reader: Reader, slices: list[Slice], processes: int) -> Iterator[Piece]:
    if processes == 1:
        yield from map(reader.read, range(len(slices)), slices)
        return
    # Not forked: the tokenizer and pyarrow have threads of their own.
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_start, initargs=(reader,)
    ) as pool:
        yield from pool.map(_read_one, range(len(slices)), slices)


_readers: list[Reader] = []


def _start(reader: Reader) -> None:
    die_with_parent()
    _readers.append(reader)


def _read_one(number: int, piece: Slice) -> Piece:
    return _readers[0].read(number, piece)


@contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    folder = out / ".reading.tmp"
    # What a killed run left behind.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _counts(pieces: list[Piece], verdict: Verdict) -> dict[str, Any]:
    rejects: Counter[str] = Counter()
    for piece in pieces:
        rejects.update({str(reason): count for reason, count in piece.rejects.items()})
    rejects.update(dict(zip(map(str, DUPLICATES), verdict.duplicates(), strict=True)))
    return {
        "rows": sum(piece.rows for piece in pieces),
        "candidates": len(verdict.kept),
        "rejects": {reason: count for reason, count in rejects.items() if count},
    }


def _provenance(
    settings: Settings, reader: Adapter, source: Source, target: Target
) -> dict[str, Any]:
    origin = read_sidecar(settings.origin, "source")["provenance"] if settings.origin else {}
    return {
        "dataset": settings.name,
        "adapter": reader.id,
        "category": reader.category,
        "licence": reader.licence,
        "attribution": reader.attribution,
        "share_alike": reader.share_alike,
        "gated": reader.gated,
        "origin": origin,
        "sources": source.digests(),
        "benchmarks": {file.name: digest_file(file) for file in settings.benchmarks},
        "target_revision": target.revision,
        "settings": {
            "max_tokens": settings.max_tokens,
            "max_turns": settings.max_turns,
            "seed": settings.seed,
        },
    }
