"""Parquet tables with a fixed schema, written whole or not at all, the same bytes every time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerie.errors import ContractError
from aerie.files import replacing


def write_table(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> None:
    """Write `rows` in their order."""
    table = pa.Table.from_pylist(list(rows), schema=schema)
    with replacing(path) as scratch:
        pq.write_table(table, scratch, compression="zstd", store_schema=False)


def write_tables(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Write tables one after another, each as it comes, and return how many rows they had.

    The bytes follow from the rows and from how they are cut into tables.
    """
    rows = 0
    with (
        replacing(path) as scratch,
        pq.ParquetWriter(scratch, schema, compression="zstd", store_schema=False) as writer,
    ):
        for table in tables:
            writer.write_table(table.select(schema.names).cast(schema))
            rows += table.num_rows
    return rows


def read_table(
    path: Path, schema: pa.Schema, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """Read rows in their order, or only `columns` of them.

    Raises:
        ContractError: the file is missing, damaged, or lacks a column of the schema.
    """
    try:
        table = pq.read_table(path, schema=schema, columns=columns)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        raise _unreadable(path, schema, error) from error
    return rows


def read_rows(path: Path, schema: pa.Schema, start: int, stop: int) -> list[dict[str, Any]]:
    """Read the rows from `start` up to `stop`, and of the file no more than it takes.

    Raises:
        ContractError: the file is missing, damaged, or lacks a column of the schema.
    """
    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetFile(path) as parquet:
            first = 0
            for group in range(parquet.num_row_groups):
                last = first + parquet.metadata.row_group(group).num_rows
                if start < last and first < stop:
                    table = parquet.read_row_group(group, columns=schema.names)
                    kept = slice(max(start - first, 0), stop - first)
                    rows += table[kept].cast(schema).to_pylist()
                first = last
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise _unreadable(path, schema, error) from error
    return rows


@contextmanager
def readable(path: Path, schema: pa.Schema) -> Iterator[None]:
    """Turn what is wrong with the values of a table into an error that names the table.

    Raises:
        ContractError: a value is not what its column holds.
    """
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(path, schema, error) from error


def _unreadable(path: Path, schema: pa.Schema, error: Exception) -> ContractError:
    return ContractError(
        f"{path} is not a readable table",
        saw=error,
        expected=f"Parquet with the columns {', '.join(schema.names)}",
        remedy=f"remove {path} and its sidecar and run the build again",
    )
