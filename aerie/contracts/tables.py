"""Parquet tables with a fixed schema, written whole or not at all, the same bytes every time."""

from collections.abc import Iterable
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


def read_table(
    path: Path, schema: pa.Schema, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """Read rows in their order, or only `columns` of them.

    Raises:
        ContractError: the file is missing, damaged, or lacks a column of the schema.
    """
    try:
        table = pq.read_table(path, schema=schema, columns=columns)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ContractError(
            f"{path} is not a readable table",
            saw=error,
            expected=f"Parquet with the columns {', '.join(schema.names)}",
            remedy=f"remove {path} and its sidecar and run the build again",
        ) from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
