"""How much compressed input may unpack to: a file of a few kilobytes can hold more than memory has.

The limit is a setting, `prompts.max_unpacked_bytes`. It reaches jobs beside their params, by the
environment: what it lets pass is the same whatever it is, so no part goes stale when it changes.
"""

import gzip
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from aerie.errors import ConfigError, DataError

VARIABLE = "AERIE_MAX_UNPACKED_BYTES"
DEFAULT_BYTES = 4_000_000_000
# Rows of Parquet that are read in one go.
_BATCH_ROWS = 1024


def max_unpacked_bytes() -> int:
    """The limit.

    Raises:
        ConfigError: the environment holds something else.
    """
    text = os.environ.get(VARIABLE) or str(DEFAULT_BYTES)
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(
            f"{VARIABLE} in the environment is no number of bytes",
            saw=text,
            expected=f"a number above 0; {DEFAULT_BYTES} without it",
            remedy="unset it: the workflow sets it from `prompts.max_unpacked_bytes`",
        )
    return int(text)


def open_gzip(path: Path) -> IO[str]:
    """A gzip file as text, all of it in memory.

    Raises:
        DataError: it unpacks to more than the limit.
        OSError, EOFError, zlib.error: it is damaged.
    """
    limit = max_unpacked_bytes()
    with gzip.open(path, "rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise _too_large(path, f"more than {limit:,} bytes when unpacked", limit)
    return io.TextIOWrapper(io.BytesIO(content), "utf-8")


def batch_rows(path: Path, metadata: Any, groups: Iterable[int], columns: Iterable[str]) -> int:
    """How many rows of `columns` can be unpacked in one go, with `metadata` of a Parquet file.

    A value that is repeated takes no room in the file: what bounds a row is the whole of a column
    in its row group, so fewer rows are read at a time where that is large.

    Raises:
        DataError: a row group unpacks to more than the limit.
    """
    limit, wanted = max_unpacked_bytes(), set(columns)
    largest = 1
    for number in groups:
        group = metadata.row_group(number)
        sizes = [
            column.total_uncompressed_size
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema.partition(".")[0] in wanted
        ]
        if sum(sizes) > limit:
            saw = f"{sum(sizes):,} bytes in row group {number} when unpacked"
            raise _too_large(path, saw, limit)
        largest = max(largest, *sizes, 1)
    return max(1, min(_BATCH_ROWS, limit // largest))


def _too_large(path: Path, saw: str, limit: int) -> DataError:
    return DataError(
        f"{path} unpacks to more than is allowed",
        saw=saw,
        expected=f"at most {limit:,} bytes, `prompts.max_unpacked_bytes`",
        remedy="raise it if the file is what it should be and the memory is there",
    )
