"""Some columns of a remote Parquet file, read by ranges into a local file of the same rows.

A column that nobody reads is never asked for: evaluation logs and addresses of users stay where
they are. What a killed run had is kept in pieces of whole row groups.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerie.errors import DataError
from aerie.files import replacing
from aerie.progress import Progress

# About what a kill costs, and what is held at once unless a single row group is larger.
_PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class Projection:
    """The columns of a file that are kept, and the bytes that they take of each row group.

    `footer` is the file's metadata as Arrow has it, so that it is read once.
    """

    columns: tuple[str, ...]
    group_bytes: tuple[int, ...]
    footer: Any

    @property
    def bytes(self) -> int:
        """Compressed bytes that have to be read."""
        return sum(self.group_bytes)

    def pieces(self) -> Iterator[range]:
        """Row groups that make a piece together."""
        start = size = 0
        for group, bytes in enumerate(self.group_bytes):
            size += bytes
            if size >= _PIECE_BYTES or group + 1 == len(self.group_bytes):
                yield range(start, group + 1)
                start, size = group + 1, 0


def plan(
    stream: IO[bytes], name: str, columns: tuple[str, ...], optional: tuple[str, ...]
) -> Projection:
    """Read a file's footer. `name` is what errors call the file.

    Raises:
        DataError: it is no Parquet file, or lacks one of `columns`.
    """
    with _readable(name), pq.ParquetFile(stream) as parquet:
        footer, there = parquet.metadata, parquet.schema_arrow.names
    for column in columns:
        if column not in there:
            raise DataError(
                f"{name}: the column {column!r} is missing",
                saw="columns " + ", ".join(there),
                expected="columns " + ", ".join(columns),
                remedy="set `revision` of the dataset to a commit that has it, "
                "or correct `columns` of its adapter in aerie/prompts/adapters",
            )
    kept = tuple(sorted(column for column in {*columns, *optional} if column in there))
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return Projection(kept, tuple(_bytes_of(group, kept) for group in groups), footer)


def copy(
    stream: IO[bytes],
    name: str,
    projection: Projection,
    pieces: Path,
    out: Path,
    progress: Progress,
) -> None:
    """Write the columns of a remote file to `out`, with its row groups.

    `pieces` is a folder for what a killed run had; it must belong to this content and projection.
    `progress` counts the bytes of the projection.

    Raises:
        DataError: the file is damaged.
    """
    footer = projection.footer
    with _readable(name), pq.ParquetFile(stream, metadata=footer, pre_buffer=True) as parquet:
        fields = [parquet.schema_arrow.field(column) for column in projection.columns]
        schema = pa.schema(fields)
        files = []
        for groups in projection.pieces():
            files.append(pieces / f"{groups[0]:06d}-{groups[-1]:06d}.parquet")
            if files[-1].exists():
                progress.skip(sum(projection.group_bytes[group] for group in groups))
            else:
                read = _groups(parquet, groups, projection, progress)
                _write(files[-1], schema, read)
        _write(out, schema, (table for file in files for table in _tables(file)))


def _bytes_of(group: Any, columns: tuple[str, ...]) -> int:
    chunks = (group.column(number) for number in range(group.num_columns))
    return sum(
        chunk.total_compressed_size
        for chunk in chunks
        if any(f"{chunk.path_in_schema}.".startswith(f"{column}.") for column in columns)
    )


def _groups(
    parquet: Any, groups: range, projection: Projection, progress: Progress
) -> Iterator[Any]:
    for group in groups:
        yield parquet.read_row_group(group, columns=list(projection.columns))
        progress.advance(projection.group_bytes[group])


def _tables(file: Path) -> Iterator[Any]:
    with pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            yield parquet.read_row_group(group)


def _write(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Write tables as one row group each. Metadata goes: it describes columns that are not here."""
    with (
        replacing(path) as scratch,
        pq.ParquetWriter(scratch, schema, compression="zstd") as writer,
    ):
        for table in tables:
            part = table.select(schema.names).replace_schema_metadata(None)
            writer.write_table(part, row_group_size=max(len(part), 1))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        # With a number it is the disk's; Arrow's own complaints about content have none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            f"{name} is not a whole Parquet file",
            saw=error,
            remedy="run the same command again; if it stays so, the commit itself is damaged: "
            "set `revision` of the dataset to another one",
        ) from error
