"""A small Hub for the scout: real files in real layouts, with and without cards."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aerie.config import ScoutSettings
from aerie.hub.client import Hub
from aerie.hub.retry import Retry
from aerie.scout.categories import CATEGORIES, Category
from aerie.scout.client import Client
from aerie.scout.search import Scouting
from tests.loopback_hub import LoopbackHub

CODING = CATEGORIES["coding_instructions"]


def parquet(columns: Iterable[str], rows: int, text: str = "x") -> bytes:
    """A Parquet file of text columns."""
    table = pa.table({name: [f"{text}{number}" for number in range(rows)] for name in columns})
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def jsonl(columns: Iterable[str], rows: int) -> bytes:
    names = list(columns)
    return b"".join(
        json.dumps({name: f"{name} {number}" for name in names}).encode() + b"\n"
        for number in range(rows)
    )


def card(columns: Iterable[str], rows: int, licence: str = "apache-2.0") -> dict[str, Any]:
    """Card data as the Hub gives it."""
    return {
        "license": licence,
        "dataset_info": {
            "features": [{"name": name, "dtype": "string"} for name in columns],
            "splits": [{"name": "train", "num_examples": rows, "num_bytes": 100 * rows}],
            "download_size": 40 * rows,
        },
    }


def populate(hub: LoopbackHub, fillers: int = 0) -> None:
    """Datasets for the category of coding instructions, one of each kind."""
    hub.add(
        "nvidia/OpenCodeInstruct",
        {"data/train-0.parquet": parquet(["id", "input", "output"], 50)},
        info={
            "downloads": 20_000,
            "likes": 90,
            "description": "Coding instructions with answers, tests and judgements, in Python.",
            "tags": ["license:cc-by-4.0", "size_categories:1M<n<10M", "language:en", "code"],
            "cardData": card(["id", "input", "output"], 5_000_000, "cc-by-4.0"),
        },
    )
    hub.add(
        "gates/coding-behind-terms",
        {"train.parquet": parquet(["messages"], 10)},
        gated="auto",
        readers={"hf_reader"},
        info={"downloads": 500, "tags": ["license:mit", "size_categories:100K<n<1M"]},
    )
    hub.add("bare/coding-without-a-word", {"notes.md": b"nothing"})
    hub.add(
        "lines/coding-rows",
        {"rows.jsonl": jsonl(["instruction", "response"], 20)},
        info={"downloads": 50, "tags": ["size_categories:10K<n<100K"]},
    )
    hub.add(
        "shards/coding-shards",
        {f"data/{n}.parquet": parquet(["prompt", "answer"], 100, "abc") for n in range(3)},
        info={"downloads": 5, "cardData": {"license": "cc-by-nc-4.0"}},
    )
    for number in range(fillers):
        columns = ["instruction", "output"]
        hub.add(
            f"filler/code-instruct-{number:02}",
            {"train.parquet": parquet(columns, 3)},
            info={
                "downloads": 10 * number,
                "tags": ["license:mit"],
                "cardData": card(columns, 1000 * (number + 1), "mit"),
            },
        )


def scouting(
    hub: LoopbackHub,
    cache: Path,
    category: Category = CODING,
    mix: dict[str, str] | None = None,
    **settings: Any,
) -> Scouting:
    client = Client(Hub(hub.url, Retry(tries=2, first=0.01, longest=0.01, jitter=0.0)))
    return Scouting(category, ScoutSettings(**settings), mix or {}, cache, client)


def asked(hub: LoopbackHub) -> list[str]:
    """Paths of the requests about one dataset: all but listings and the client's own questions."""
    about = ("/api/datasets/", "/datasets/", "/cdn/")
    return [request.path for request in hub.requests if request.path.startswith(about)]
