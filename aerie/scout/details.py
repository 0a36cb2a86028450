"""What is known of one dataset at one commit: rows, bytes, format, columns, licence.

Read from its card, its list of files and, where the card names no columns, from the footer of one
Parquet file or the first row of one JSON file: a range request each, never a whole file. Details
belong to a commit, so they are cached by it and asked for once.
"""

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import DatasetInfo, get_token
from huggingface_hub.hf_api import RepoSibling

from aerie.contracts import VERSIONS
from aerie.errors import ContractError, DataError
from aerie.files import read_json, write_sealed
from aerie.scout import card
from aerie.scout.client import Client, refused
from aerie.scout.listing import Listed, bounds_of, middle

_FORMATS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".tar": "webdataset",
    ".txt": "text",
}
_PACKED = {".gz", ".zst", ".bz2", ".xz"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A first row that is longer is left unread: its columns are not worth a download.
_HEAD_BYTES = 1 << 18
# Files that describe a repository and hold none of its rows.
_ABOUT = {"dataset_infos.json", "dataset_info.json", "state.json", "package.json"}


@dataclass(frozen=True)
class Details:
    """One dataset at one commit.

    `rows` are those of its largest configuration, since configurations often hold the same rows.
    The `*_from` fields say where a figure is from: `card`, `footer` (exact), `estimate` (one
    footer's rows, scaled by bytes), `tag` (the middle of a size tag), `files`, `first row`, or
    `unknown`. `notes` say what could not be read and why.
    """

    rows: int | None = None
    rows_from: str = "unknown"
    size_tag: str | None = None
    bytes: int | None = None
    bytes_from: str = "unknown"
    format: str = "unknown"
    files: int = 0
    columns: tuple[str, ...] = ()
    columns_from: str = "unknown"
    configurations: dict[str, int | None] = field(default_factory=dict)
    licence: str = "unknown"
    blocked: bool = False
    notes: tuple[str, ...] = ()


def details_of(listed: Listed, client: Client, cache: Path) -> Details:
    """The details of a dataset at the commit that is listed, from the cache where it has them.

    Raises:
        DataError: the Hub did not answer for this dataset.
    """
    path = cache / listed.id.replace("/", "__") / f"{listed.revision}.json"
    known = _cached(path)
    # With a token, terms may have been accepted since.
    if known is not None and not (known.blocked and get_token()):
        return known
    details, whole = _ask(listed, client)
    if whole and _COMMIT.fullmatch(listed.revision):
        content = {"artifact": "scout", "contract": VERSIONS["scout"], **asdict(details)}
        write_sealed(path, content)
    return details


def _cached(path: Path) -> Details | None:
    if not path.exists():
        return None
    try:
        content = read_json(path)
        if content.pop("artifact") != "scout" or content.pop("contract") != VERSIONS["scout"]:
            return None
        for name in ("columns", "notes"):
            content[name] = tuple(content[name])
        return Details(**content)
    except (ContractError, AttributeError, KeyError, TypeError):
        return None  # of another version of Aerie, or damaged: it is asked for again


def _ask(listed: Listed, client: Client) -> tuple[Details, bool]:
    """The details, and whether all that can be known was read."""
    info = client.info(listed)
    data = info.card_data.to_dict() if info.card_data else {}
    files = _data_files(info)
    format, chosen = _format(files)
    configurations = card.configurations(data)
    found: dict[str, Any] = {
        "size_tag": next(iter(listed.tagged("size_categories")), None),
        "format": format if chosen else next(iter(listed.tagged("format")), "unknown"),
        "files": len(files),
        "configurations": {name: rows for name, (rows, _) in configurations.items()},
        "licence": card.licence(data) or next(iter(listed.tagged("license")), "unknown"),
    }
    found |= _bytes(files, data)
    columns = max((names for _, names in configurations.values()), key=len, default=())
    if columns:
        found |= {"columns": columns, "columns_from": "card"}
    if rows := [rows for rows, _ in configurations.values() if rows]:
        found |= {"rows": max(rows), "rows_from": "card"}
    whole = True
    if not columns or not rows:
        read, whole = _look(listed, client, format, chosen)
        found |= {key: value for key, value in read.items() if key not in found}
    bounds = bounds_of(found["size_tag"] or "")
    if bounds and "rows" not in found:
        found |= {"rows": middle(bounds), "rows_from": "tag"}
    return Details(**found), whole


def _look(
    listed: Listed, client: Client, format: str, files: list[RepoSibling]
) -> tuple[dict[str, Any], bool]:
    """Columns and rows from the inside of one file, and whether asking again would be useless."""
    file = max(files, key=lambda each: each.size or 0, default=None)
    if file is None or not file.size or format not in ("parquet", "jsonl", "json"):
        return {}, True
    if PurePosixPath(file.rfilename).suffix in _PACKED:
        return {"notes": (f"columns: {file.rfilename} is compressed and was not read",)}, True
    try:
        with client.open(listed, file.rfilename, file.size) as stream:
            if format == "parquet":
                return _footer(stream, file, files), True
            head = stream.read(_HEAD_BYTES)
    except DataError as error:
        note = f"columns: {file.rfilename} was not read: {error.saw}"
        return {"notes": (note,), "blocked": refused(error)}, refused(error)
    except (pa.ArrowException, OSError) as error:
        return {"notes": (f"columns: {file.rfilename} is damaged: {error}",)}, True
    columns = _first_row(head)
    if columns is None:
        note = f"columns: no whole row in the first {len(head):,} bytes of {file.rfilename}"
        return {"notes": (note,)}, True
    return {"columns": columns, "columns_from": "first row"}, True


def _footer(stream: Any, file: RepoSibling, files: list[RepoSibling]) -> dict[str, Any]:
    parquet = pq.ParquetFile(stream)
    found: dict[str, Any] = {
        "columns": tuple(parquet.schema_arrow.names), "columns_from": "footer"
    }  # fmt: skip
    sizes = [each.size for each in files if each.size]
    if len(files) == 1:
        found |= {"rows": parquet.metadata.num_rows, "rows_from": "footer"}
    elif len(sizes) == len(files) and file.size:
        rows = round(parquet.metadata.num_rows * sum(sizes) / file.size)
        found |= {"rows": rows, "rows_from": "estimate"}
    return found


def _first_row(head: bytes) -> tuple[str, ...] | None:
    """The keys of the first object of a JSON Lines file or of a JSON array."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n[")
    try:
        row, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    return tuple(map(str, row)) if isinstance(row, dict) else None


def _data_files(info: DatasetInfo) -> list[RepoSibling]:
    return [
        file
        for file in info.siblings or ()
        if _suffix(file) in _FORMATS
        and PurePosixPath(file.rfilename).name not in _ABOUT
        and not any(part.startswith(".") for part in PurePosixPath(file.rfilename).parts)
    ]


def _suffix(file: RepoSibling) -> str:
    path = PurePosixPath(file.rfilename.lower())
    return path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix


def _format(files: list[RepoSibling]) -> tuple[str, list[RepoSibling]]:
    """The format of most bytes, then of most files, and the files that are of it."""
    weight: Counter[str] = Counter()
    for file in files:
        weight[_FORMATS[_suffix(file)]] += (file.size or 0) + 1
    if not weight:
        return "unknown", []
    format = max(sorted(weight), key=lambda name: weight[name])
    return format, [file for file in files if _FORMATS[_suffix(file)] == format]


def _bytes(files: list[RepoSibling], data: dict[str, Any]) -> dict[str, Any]:
    sizes = [file.size for file in files if file.size is not None]
    if files and len(sizes) == len(files):
        return {"bytes": sum(sizes), "bytes_from": "files"}
    stated = card.download_bytes(data)
    return {} if stated is None else {"bytes": stated, "bytes_from": "card"}
