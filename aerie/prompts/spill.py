"""The texts of accepted and rejected rows on their way from scratch files to the artifacts."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerie.contracts.prompts import PROMPTS, REJECTS, Reason
from aerie.prompts.codepoints import Array
from aerie.prompts.distinct import Verdict
from aerie.prompts.rows import REJECTED, Piece, rejected, spilled
from aerie.prompts.text import head

_TABLE_ROWS = 1 << 15


class Spill:
    """The scratch files of a dataset's slices, read in any order through the page cache."""

    def __init__(self, scratch: Path, pieces: list[Piece], dataset: str) -> None:
        self._scratch, self._dataset = scratch, dataset
        self._places = [piece.facts["place"] for piece in pieces]
        sizes = [len(piece.facts) for piece in pieces]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._flags: Counter[str] = Counter()
        self._strata: Counter[str] = Counter()

    def candidates(self, verdict: Verdict) -> Iterator[pa.Table]:
        """The candidates in the order of `verdict.kept`, as tables of `PROMPTS`."""
        for start in range(0, len(verdict.kept), _TABLE_ROWS):
            stop = min(start + _TABLE_ROWS, len(verdict.kept))
            table = self._take(verdict.kept[start:stop])
            keys = [bytes(key).hex() for key in verdict.index.keys[start:stop]]
            columns: dict[str, Any] = {
                "id": [f"{self._dataset}-{key}" for key in keys],
                "dataset": pa.repeat(self._dataset, len(keys)),
                "key": keys,
                "rank": verdict.ranks[start:stop],
                "mode": pa.repeat("", len(keys)),
                "part": pa.repeat(pa.scalar(-1, pa.int32()), len(keys)),
            }
            self._count(table)
            columns |= {name: table[name] for name in PROMPTS.names if name not in columns}
            yield pa.table(columns)

    def totals(self) -> dict[str, Any]:
        """How many of the candidates given so far have each flag, and how many are of a stratum."""
        return {"flags": dict(self._flags), "strata": dict(self._strata)}

    def rejects(self, verdict: Verdict) -> Iterator[pa.Table]:
        """Rejected rows and duplicates in the order of rows, as tables of `REJECTS`."""
        for number in range(len(self._places)):
            with pa.memory_map(str(rejected(self._scratch, number))) as stream:
                table = pa.ipc.open_file(stream).read_all()
                lost = [table, *self._duplicates(number, verdict)]
                merged = pa.concat_tables(lost).sort_by("place")
                dataset = pa.repeat(self._dataset, merged.num_rows)
                yield merged.append_column("dataset", dataset).select(REJECTS.names)

    def _duplicates(self, number: int, verdict: Verdict) -> Iterator[pa.Table]:
        start, stop = self._starts[number : number + 2]
        for pairs, reason in (
            (verdict.same, Reason.DUPLICATE),
            (verdict.near, Reason.NEAR_DUPLICATE),
        ):
            inside = (pairs[:, 0] >= start) & (pairs[:, 0] < stop)
            mine = pairs[inside]
            if not len(mine):
                continue
            if reason == Reason.NEAR_DUPLICATE:
                words = ["nearly the text of"] * len(mine)
            else:
                identities = verdict.same_identity[inside]
                words = [("same text as", "same identity as")[int(flag)] for flag in identities]
            dropped, repeated = self._take(mine[:, 0]), self._take(mine[:, 1])["row"].to_pylist()
            texts = (head(json.loads(turns)[0]) for turns in dropped["turns"].to_pylist())
            columns = [
                self._places[number][mine[:, 0] - start],
                dropped["row"],
                [str(reason)] * len(mine),
                [f"{word} {row}" for word, row in zip(words, repeated, strict=True)],
                list(texts),
            ]
            yield pa.table(columns, schema=REJECTED)

    def _take(self, rows: Array) -> pa.Table:
        """Accepted rows in the given order."""
        slices = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(slices, kind="stable")
        tables = []
        for number in np.unique(slices).tolist():
            local = rows[order][slices[order] == number] - self._starts[number]
            with pa.memory_map(str(spilled(self._scratch, number))) as stream:
                tables.append(pa.ipc.open_file(stream).read_all().take(pa.array(local)))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables(tables).take(pa.array(back))

    def _count(self, table: pa.Table) -> None:
        for entry in pc.value_counts(table["flags"]).to_pylist():
            for flag in json.loads(entry["values"]):
                self._flags[flag] += entry["counts"]
        for entry in pc.value_counts(table["stratum"].drop_null()).to_pylist():
            self._strata[entry["values"]] += entry["counts"]
