"""From rows to prompts, slice by slice: what a process of the candidates phase does.

The texts go to scratch files in Arrow's own format; what decides about a prompt (its key, its
signature) goes back as arrays, so that millions of rows are compared without holding their texts.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from aerie.contracts.prompts import PROMPTS, REJECTS, Reason
from aerie.prompts.codepoints import Array
from aerie.prompts.contamination import Contamination
from aerie.prompts.limits import TargetLimits
from aerie.prompts.near import signatures
from aerie.prompts.normalise import Normalised, Rejected
from aerie.prompts.read import as_text, read_prompt
from aerie.prompts.source import Row, Slice, Source
from aerie.prompts.text import fold, folded_key, head

_BATCH_ROWS = 512

_OF_PROMPTS = ("system", "turns", "tools", "flags", "stratum", "native")
_OF_REJECTS = ("id", "reason", "detail", "text")
SPILLED = pa.schema([("row", pa.string()), *map(PROMPTS.field, _OF_PROMPTS)])
REJECTED = pa.schema([("place", pa.int64()), *map(REJECTS.field, _OF_REJECTS)])
# What decides about an accepted row. `place` is its number in the slice; of two prompts with the
# same key the one with the smaller (`size`, `digest`) is kept; `identity` is 0 where there is none.
FACTS = np.dtype(
    [
        ("place", "<i8"),
        ("size", "<i8"),
        ("key", "<u8", 2),
        ("digest", "<u8", 2),
        ("identity", "<u8"),
        ("stratum", "<u8"),
    ]
)


@dataclass
class Piece:
    """What a slice gave: facts `FACTS` [n], bands uint32 [n, 32] and bits uint8 [n, 128]."""

    rows: int
    facts: Array
    bands: Array
    bits: Array
    rejects: Counter[Reason] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)


class _Accepted(NamedTuple):
    place: int
    row: str
    prompt: Normalised
    system: str
    turns: str


class Reader:
    """Reads slices of one source. It can be sent to another process."""

    def __init__(
        self,
        source: Source,
        limits: TargetLimits,
        benchmarks: Contamination,
        max_turns: int,
        scratch: Path,
    ) -> None:
        self._source, self._limits, self._benchmarks = source, limits, benchmarks
        self._max_turns, self._scratch = max_turns, scratch

    def read(self, number: int, piece: Slice) -> Piece:
        """Read slice `number`; leaves the files that `spilled` and `rejected` name.

        Raises:
            DataError: the file is damaged.
        """
        result = Piece(0, np.zeros(0, FACTS), np.zeros((0, 32)), np.zeros((0, 128)))
        arrays: list[tuple[Array, Array, Array]] = []
        texts_file, rejects_file = spilled(self._scratch, number), rejected(self._scratch, number)
        with (
            pa.OSFile(str(texts_file), "wb") as texts_sink,
            pa.OSFile(str(rejects_file), "wb") as rejects_sink,
            pa.ipc.new_file(texts_sink, SPILLED) as texts,
            pa.ipc.new_file(rejects_sink, REJECTED) as rejects,
        ):
            batch: list[Row] = []
            for row in self._source.rows(piece, result.seen):
                batch.append(row)
                if len(batch) == _BATCH_ROWS:
                    arrays.append(self._batch(batch, result, texts, rejects))
                    batch = []
            if batch:
                arrays.append(self._batch(batch, result, texts, rejects))
        if arrays:
            result.facts, result.bands, result.bits = map(np.concatenate, zip(*arrays, strict=True))
        return result

    def _batch(
        self,
        batch: list[Row],
        result: Piece,
        texts: pa.RecordBatchFileWriter,
        rejects: pa.RecordBatchFileWriter,
    ) -> tuple[Array, Array, Array]:
        accepted: list[_Accepted] = []
        lost: list[tuple[int, str, str, str, str]] = []
        for place, row in enumerate(batch, result.rows):
            try:
                prompt = self._prompt(row)
            except Rejected as no:
                lost.append(_reject(place, row, no))
            else:
                turns = "\n".join(map(fold, prompt.turns))
                accepted.append(_Accepted(place, row.id, prompt, fold(prompt.system or ""), turns))
        clean = []
        overlaps = self._benchmarks.overlaps([one.turns for one in accepted])
        for one, name in zip(accepted, overlaps, strict=True):
            if name is None:
                clean.append(one)
            else:
                overlap = Rejected(Reason.BENCHMARK_OVERLAP, f"13 words in a row are in {name}")
                lost.append(_reject(one.place, batch[one.place - result.rows], overlap))
        result.rows += len(batch)
        result.rejects.update(Reason(entry[2]) for entry in lost)
        _write(rejects, REJECTED, sorted(lost))
        _write(texts, SPILLED, [_texts(one) for one in clean])
        facts = np.array([_facts(one) for one in clean], FACTS)
        found = signatures([one.turns for one in clean], _salts(clean))
        return facts, found.bands, found.bits

    def _prompt(self, row: Row) -> Normalised:
        if row.value is None:
            raise Rejected(row.reason, row.problem)
        return read_prompt(self._source.adapter, row.value, self._limits, self._max_turns)


def spilled(scratch: Path, number: int) -> Path:
    """The accepted rows of slice `number`: Arrow IPC, `SPILLED`."""
    return scratch / f"{number:06d}.prompts.arrow"


def rejected(scratch: Path, number: int) -> Path:
    """The rejected rows of slice `number`: Arrow IPC, `REJECTED`."""
    return scratch / f"{number:06d}.rejects.arrow"


def _write(writer: pa.RecordBatchFileWriter, schema: pa.Schema, rows: list[Any]) -> None:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    writer.write_batch(pa.record_batch(arrays, schema=schema))


def _texts(one: _Accepted) -> tuple[Any, ...]:
    prompt = one.prompt
    turns = json.dumps(prompt.turns, ensure_ascii=False)
    flags = json.dumps(prompt.flags) if prompt.flags else "[]"
    return one.row, prompt.system, turns, prompt.tools, flags, prompt.stratum, prompt.native


def _facts(one: _Accepted) -> tuple[Any, ...]:
    prompt = one.prompt
    size = sum(map(len, prompt.turns), len(prompt.system or ""))
    # Everything that counts, so that of two with equal digests either may be kept.
    content = "\0".join(
        [
            prompt.system or "",
            *prompt.turns,
            prompt.tools or "",
            *prompt.flags,
            prompt.identity or "",
            prompt.stratum or "",
            prompt.native or "",
        ]
    )
    return (
        one.place,
        size,
        _halves(folded_key(one.system, one.turns)),
        _halves(xxhash.xxh3_128_digest(_bytes(content))),
        _named(prompt.identity),
        _named(prompt.stratum),
    )


def _named(name: str | None) -> int:
    # Zero is kept for those that have no name.
    return 0 if name is None else xxhash.xxh3_64_intdigest(_bytes(name)) | 1


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _halves(digest: bytes) -> tuple[int, int]:
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def _salts(accepted: list[_Accepted]) -> Array:
    salts = (_named(one.system or None) for one in accepted)
    return np.fromiter(salts, np.uint64, len(accepted))


def _reject(place: int, row: Row, no: Rejected) -> tuple[int, str, str, str, str]:
    text = row.text or as_text(row.value)
    return place, row.id, str(no.reason), head(no.detail), head(text)
