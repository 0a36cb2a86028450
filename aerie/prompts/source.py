"""Raw rows of the local files of a dataset: Parquet, JSON Lines and JSON.

Files are cut into slices that can be read on their own, in any order and by any process. Of a
Parquet file only the columns that the adapter names are read. JSON is decoded line by line, so that
an odd row costs itself and not the file.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerie.contracts.prompts import Reason
from aerie.errors import DataError
from aerie.files import digest_file
from aerie.prompts.adapters import Adapter
from aerie.prompts.jsontext import BOM, BadLine, DamagedArray, decode, decode_lines
from aerie.prompts.read import as_text
from aerie.prompts.unpack import batch_rows

_SLICE_ROWS = 8192
_SLICE_BYTES = 16 << 20


@dataclass(frozen=True)
class Row:
    """A row as it was read. `id` is file and number: of the line, the element or the row, from 1.

    `value` holds the adapter's columns, None where the row lacks one; it is None for a row that
    could not be read, and then `reason` and `problem` say why and `text` shows it.
    """

    id: str
    value: dict[str, Any] | None
    reason: Reason = Reason.BAD_JSON
    problem: str = ""
    text: str = ""


@dataclass(frozen=True)
class Slice:
    """A piece of a file.

    `first` is the number of its first row or line, from 1, and `rows` how many there are at most.
    `start` and `stop` are row groups of a Parquet file or bytes of JSON Lines; a JSON array is one
    slice.
    """

    file: Path
    first: int
    rows: int
    start: int
    stop: int


class Source:
    """The files of one dataset."""

    def __init__(
        self, path: Path, adapter: Adapter, patterns: tuple[str, ...] | None = None
    ) -> None:
        """Find and check the files in the folder `path`, or take the one file that it is.

        `patterns` inside the folder are by default the adapter's.

        Raises:
            DataError: the folder, its files or a column is missing, or a file is damaged.
        """
        self.adapter = adapter
        self.folder = path.parent if path.is_file() else path
        self.files = [path] if path.is_file() else _find(path, adapter, patterns or adapter.files)
        for file in self.files:
            if file.stat().st_size == 0:
                raise self._damaged(file, "0 bytes")

    def digests(self) -> dict[str, dict[str, Any]]:
        """Digest and bytes of each file, by its name inside the folder."""
        return {
            self.name(file): {"xxh3": digest_file(file), "bytes": file.stat().st_size}
            for file in self.files
        }

    def name(self, file: Path) -> str:
        """The name of a file inside the folder."""
        return file.relative_to(self.folder).as_posix()

    def slices(self) -> list[Slice]:
        """All slices, in the order of file names and of rows.

        Raises:
            DataError: a Parquet file is damaged or lacks a column.
        """
        result: list[Slice] = []
        for file in self.files:
            result += self._groups(file) if file.suffix == ".parquet" else _ranges(file)
        return result

    def rows(self, piece: Slice, seen: set[str]) -> Iterator[Row]:
        """The rows of a slice. Of JSON, the keys that its objects have are added to `seen`.

        Raises:
            DataError: the file is damaged.
        """
        read = self._parquet_rows if piece.file.suffix == ".parquet" else self._json_rows
        return read(piece, seen)

    def check_columns(self, file: Path, seen: set[str]) -> None:
        """Check that objects of a JSON file have the adapter's columns; `seen` are their keys.

        Raises:
            DataError: no object of the file has one of the columns.
        """
        missing = self.adapter.lacks(seen) if seen else None
        if missing:
            raise self._missing_column(file, missing, sorted(seen))

    def _groups(self, file: Path) -> list[Slice]:
        try:
            with pq.ParquetFile(file) as parquet:
                names = parquet.schema_arrow.names
                groups = [
                    parquet.metadata.row_group(group).num_rows
                    for group in range(parquet.metadata.num_row_groups)
                ]
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(file, error) from error
        missing = self.adapter.lacks(names)
        if missing:
            raise self._missing_column(file, missing, names)
        result, first, start, rows = [], 1, 0, 0
        for group, count in enumerate(groups):
            rows += count
            if rows >= _SLICE_ROWS or group + 1 == len(groups):
                result.append(Slice(file, first, rows, start, group + 1))
                first, start, rows = first + rows, group + 1, 0
        return result

    def _parquet_rows(self, piece: Slice, seen: set[str]) -> Iterator[Row]:
        wanted = self.adapter.wanted()
        prefix, number = f"{self.name(piece.file)}:", piece.first
        try:
            with pq.ParquetFile(piece.file) as parquet:
                columns = [name for name in wanted if name in parquet.schema_arrow.names]
                lacking = dict.fromkeys(name for name in wanted if name not in columns)
                groups = range(piece.start, piece.stop)
                rows = batch_rows(piece.file, parquet.metadata, groups, columns)
                for batch in parquet.iter_batches(rows, row_groups=groups, columns=columns):
                    values = [_python(batch.column(name)) for name in columns]
                    for cells in zip(*values, strict=True):
                        yield Row(
                            f"{prefix}{number}", lacking | dict(zip(columns, cells, strict=True))
                        )
                        number += 1
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise self._damaged(piece.file, error) from error

    def _json_rows(self, piece: Slice, seen: set[str]) -> Iterator[Row]:
        wanted = self.adapter.wanted()
        prefix = f"{self.name(piece.file)}:"
        with piece.file.open("rb") as stream:
            if piece.stop:
                stream.seek(piece.start)
                data = stream.read(piece.stop - piece.start)
                # A byte that is not UTF-8 becomes U+FFFD, as a lone surrogate does.
                lines = iter(data.decode("utf-8", "replace").split("\n"))
                rows = decode_lines(lines, piece.first)
            else:
                rows = decode(io.TextIOWrapper(stream, "utf-8", "replace", newline="\n"))
            try:
                for number, value in rows:
                    yield _json_row(f"{prefix}{number}", value, wanted, seen)
            except DamagedArray as error:
                raise self._damaged(piece.file, error) from error

    def _damaged(self, file: Path, saw: object) -> DataError:
        return DataError(
            f"{file} is damaged or was not downloaded whole",
            saw=saw,
            expected=f"a file of {self.adapter.id}",
            remedy=f"remove it and download it again: {_download(self.folder, self.adapter)}",
        )

    def _missing_column(self, file: Path, column: str, there: list[str]) -> DataError:
        one_of = " or ".join(self.adapter.one_of)
        return DataError(
            f"{file}: the column {column!r} is missing",
            saw="columns " + ", ".join(there),
            expected="columns " + ", ".join([*self.adapter.columns, *filter(None, [one_of])]),
            remedy=f"download the revision that the adapter of {self.adapter.id} reads, "
            "or correct `columns` of the adapter in aerie/prompts/adapters",
        )


def _json_row(id: str, value: Any, wanted: tuple[str, ...], seen: set[str]) -> Row:
    if isinstance(value, BadLine):
        return Row(id, None, Reason.BAD_JSON, value.problem, value.text)
    if not isinstance(value, dict):
        problem = f"the row is {type(value).__name__}, not an object"
        return Row(id, None, Reason.NOT_AN_OBJECT, problem, as_text(value))
    seen.update(value)
    return Row(id, {column: value.get(column) for column in wanted})


def _ranges(file: Path) -> list[Slice]:
    """Slices of JSON Lines that end with a line; a JSON array, or a short file, is one of all."""
    result: list[Slice] = []
    with file.open("rb") as stream:
        array = stream.read(4096).decode("utf-8", "ignore").lstrip(BOM).lstrip().startswith("[")
        stream.seek(0)
        start, first = 0, 1
        while data := stream.read(_SLICE_BYTES):
            data += stream.readline()
            lines = data.count(b"\n") + (not data.endswith(b"\n"))
            result.append(Slice(file, first, lines, start, start + len(data)))
            start, first = start + len(data), first + lines
    return [Slice(file, 1, first - 1, 0, 0)] if array else result


def _python(array: pa.Array) -> list[Any]:
    """`array.to_pylist()`, several times as fast for what datasets are made of: text in lists."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        result: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return result
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        # `flatten` puts the nulls of the struct into its fields.
        fields = [_python(field) for field in array.flatten()]
        cells = zip(*fields, strict=True)
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in cells]
        return _with_nulls(array, rows)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = array.offsets.to_pylist()
        items = _python(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        base = offsets[0]
        rows = [items[start - base : stop - base] for start, stop in pairwise(offsets)]
        return _with_nulls(array, rows)
    result = array.to_pylist()
    return result


def _with_nulls(array: pa.Array, rows: list[Any]) -> list[Any]:
    if not array.null_count:
        return rows
    there = array.is_valid().to_pylist()
    return [row if valid else None for row, valid in zip(rows, there, strict=True)]


def _find(folder: Path, adapter: Adapter, patterns: tuple[str, ...]) -> list[Path]:
    if not folder.is_dir():
        raise DataError(
            f"the folder {folder} of {adapter.id} is missing",
            expected="a downloaded copy of the dataset",
            remedy=f"correct `path` of the dataset, or run: {_download(folder, adapter)}",
        )
    found = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    if not found:
        there = sorted(file.name for file in folder.iterdir())
        raise DataError(
            f"{folder} holds no file of {adapter.id}",
            saw=", ".join(there[:8]) or "an empty folder",
            expected=" or ".join(patterns),
            remedy=f"run: {_download(folder, adapter)}",
        )
    return sorted(found)


def _download(folder: Path, adapter: Adapter) -> str:
    include = " ".join(f"--include {pattern!r}" for pattern in adapter.files)
    return f"hf download --repo-type dataset {adapter.id} {include} --local-dir {folder}"
