"""Raw rows of a downloaded dataset folder, read through the `datasets` library without a network.

Parquet goes through its Parquet builder with the needed columns alone. JSON and JSON Lines go
through its text builder and are decoded here, line by line: the JSON builder guesses one type for
each field of a file, so a single odd row would cost the whole file.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerie.contracts.prompts import Reason
from aerie.errors import DataError
from aerie.files import digest_file
from aerie.progress import Progress
from aerie.prompts.adapters import Adapter
from aerie.prompts.jsontext import BadLine, DamagedArray, decode

_BATCH_ROWS = 256


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


class Source:
    """The files of one downloaded dataset."""

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        """Find and check the files.

        Raises:
            DataError: the folder, its files or a column is missing, or a file is damaged.
        """
        self.folder, self.adapter = folder, adapter
        self.files = _find(folder, adapter)
        self._sizes = [self._check(file) for file in self.files]

    def digests(self) -> dict[str, dict[str, Any]]:
        """Digest and bytes of each file, by its name inside the folder."""
        return {
            self._name(file): {"xxh3": digest_file(file), "bytes": file.stat().st_size}
            for file in self.files
        }

    def rows(self, title: str) -> Iterator[Row]:
        """All rows, in the order of file names and of rows in a file; `title` names the progress.

        Raises:
            DataError: a file is damaged or no row of it has a column that the adapter needs.
        """
        unit = "rows" if all(file.suffix == ".parquet" for file in self.files) else "lines"
        with (
            Progress(title, sum(self._sizes), unit) as progress,
            tempfile.TemporaryDirectory(prefix="aerie-datasets-") as cache,
        ):
            for file in self.files:
                read = self._parquet_rows if file.suffix == ".parquet" else self._json_rows
                yield from read(file, cache, progress)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()

    def _check(self, file: Path) -> int:
        """The rows of a Parquet file, or the lines of a JSON file."""
        if file.stat().st_size == 0:
            raise self._damaged(file, "0 bytes")
        if file.suffix != ".parquet":
            with file.open("rb") as stream:
                return sum(1 for _ in stream)
        try:
            with pq.ParquetFile(file) as parquet:
                names, rows = parquet.schema_arrow.names, parquet.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(file, error) from error
        for column in self.adapter.columns:
            if column not in names:
                raise self._missing_column(file, column, names)
        return int(rows)

    def _parquet_rows(self, file: Path, cache: str, progress: Progress) -> Iterator[Row]:
        wanted = (*self.adapter.columns, *self.adapter.optional)
        there = set(pq.read_schema(file).names)
        columns = [column for column in wanted if column in there]
        number = 0
        for batch in self._batches("parquet", file, cache, columns=columns):
            for values in zip(*(batch[column] for column in columns), strict=True):
                number += 1
                value = dict.fromkeys(wanted) | dict(zip(columns, values, strict=True))
                yield Row(f"{self._name(file)}:{number}", value)
            progress.advance(len(batch[columns[0]]))

    def _json_rows(self, file: Path, cache: str, progress: Progress) -> Iterator[Row]:
        wanted = (*self.adapter.columns, *self.adapter.optional)
        seen: set[str] = set()
        objects = 0
        try:
            for number, value in decode(self._lines(file, cache, progress)):
                id = f"{self._name(file)}:{number}"
                if isinstance(value, BadLine):
                    yield Row(id, None, Reason.BAD_JSON, value.problem, value.text)
                elif not isinstance(value, dict):
                    kind = type(value).__name__
                    problem = f"the row is {kind}, not an object"
                    yield Row(id, None, Reason.NOT_AN_OBJECT, problem, str(value))
                else:
                    objects += 1
                    seen |= value.keys()
                    yield Row(id, {column: value.get(column) for column in wanted})
        except DamagedArray as error:
            raise self._damaged(file, error) from error
        for column in self.adapter.columns:
            if objects and column not in seen:
                raise self._missing_column(file, column, sorted(seen))

    def _lines(self, file: Path, cache: str, progress: Progress) -> Iterator[str]:
        # A byte that is not UTF-8 becomes U+FFFD, as a lone surrogate does in the normaliser.
        for batch in self._batches("text", file, cache, encoding_errors="replace"):
            yield from batch["text"]
            progress.advance(len(batch["text"]))

    def _batches(
        self, builder: str, file: Path, cache: str, **options: Any
    ) -> Iterator[dict[str, list[Any]]]:
        from datasets import load_dataset

        try:
            stream = load_dataset(
                builder,
                data_files=[str(file)],
                split="train",
                streaming=True,
                cache_dir=cache,
                **options,
            )
            yield from stream.iter(batch_size=_BATCH_ROWS)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(file, error) from error

    def _damaged(self, file: Path, saw: object) -> DataError:
        return DataError(
            f"{file} is damaged or was not downloaded whole",
            saw=saw,
            expected=f"a file of {self.adapter.id}",
            remedy=f"remove it and download it again: {_download(self.folder, self.adapter)}",
        )

    def _missing_column(self, file: Path, column: str, there: list[str]) -> DataError:
        return DataError(
            f"{file}: the column {column!r} is missing",
            saw="columns " + ", ".join(there),
            expected="columns " + ", ".join(self.adapter.columns),
            remedy=f"download the revision that the adapter of {self.adapter.id} reads, "
            "or correct `columns` of the adapter in aerie/prompts/adapters.py",
        )


def _find(folder: Path, adapter: Adapter) -> list[Path]:
    if not folder.is_dir():
        raise DataError(
            f"the folder {folder} of {adapter.id} is missing",
            expected="a downloaded copy of the dataset",
            remedy=f"correct `path` of the dataset, or run: {_download(folder, adapter)}",
        )
    found = {file for pattern in adapter.files for file in folder.glob(pattern) if file.is_file()}
    if not found:
        there = sorted(file.name for file in folder.iterdir())
        raise DataError(
            f"{folder} holds no file of {adapter.id}",
            saw=", ".join(there[:8]) or "an empty folder",
            expected=" or ".join(adapter.files),
            remedy=f"run: {_download(folder, adapter)}",
        )
    return sorted(found)


def _download(folder: Path, adapter: Adapter) -> str:
    include = " ".join(f"--include {pattern!r}" for pattern in adapter.files)
    return f"hf download --repo-type dataset {adapter.id} {include} --local-dir {folder}"
