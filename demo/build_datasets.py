#!/usr/bin/env python3
"""Write the embedded demo datasets from their source text.

`demo/content/<short name>.jsonl` holds every row, readable and already in its final columns. This
script writes them to `demo/datasets/<owner>__<name>/` in the format, folders and Arrow types of the
public repository of that name. The same content gives the same bytes (with one pyarrow version).
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]

STR, INT = pa.string(), pa.int64()
STRINGS = pa.list_(STR)
CHATML = pa.list_(pa.struct([("content", STR), ("role", STR)]))
SHAREGPT = pa.list_(pa.struct([("from", STR), ("value", STR)]))
MASK = ("mask", pa.bool_())
STEP = [("cutoff_date", STR), MASK, ("role", STR), ("system_prompt", STR), ("text", STR)]
TRAJECTORY = pa.list_(pa.struct(STEP))
LABEL = pa.struct(
    [
        ("ability_en", STRINGS),
        ("ability_zh", STRINGS),
        ("cate_ability_en", STRINGS),
        ("cate_ability_zh", STRINGS),
    ]
)
ULTRACHAT = pa.schema([("prompt", STR), ("prompt_id", STR), ("messages", CHATML)])


@dataclass(frozen=True)
class Output:
    """One file: where its rows come from, where it goes, and its Arrow schema (Parquet only)."""

    content: str
    repo: str
    path: str
    schema: pa.Schema | None = None


OUTPUTS = (
    Output(
        "swe_agent",
        "nebius/SWE-agent-trajectories",
        "data/train-00000-of-00001.parquet",
        pa.schema(
            [
                ("instance_id", STR),
                ("model_name", STR),
                ("target", pa.bool_()),
                ("trajectory", TRAJECTORY),
                ("exit_status", STR),
                ("generated_patch", STR),
                ("eval_logs", STR),
            ]
        ),
    ),
    Output(
        "deepswe",
        "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K",
        "DeepSWE-Agent-Kimi-K2-Trajectories-2.8K.jsonl",
    ),
    Output(
        "mixture_of_thoughts",
        "open-r1/Mixture-of-Thoughts",
        "all/train-00000-of-00001.parquet",
        pa.schema([("messages", CHATML), ("num_tokens", INT), ("source", STR)]),
    ),
    Output(
        "openthoughts",
        "open-thoughts/OpenThoughts-114k",
        "data/train-00000-of-00001.parquet",
        pa.schema([("system", STR), ("conversations", SHAREGPT)]),
    ),
    Output(
        "opencode_instruct",
        "nvidia/OpenCodeInstruct",
        "data/train-00000-of-00001.parquet",
        pa.schema(
            [
                ("id", STR),
                ("input", STR),
                ("output", STR),
                ("domain", STR),
                ("generation_algorithm", STR),
                ("llm_judgement", STR),
                ("unit_tests", STR),
                ("tests_execution_status", STR),
                ("average_test_score", STR),
            ]
        ),
    ),
    Output(
        "magicoder",
        "ise-uiuc/Magicoder-Evol-Instruct-110K",
        "data-evol_instruct-decontaminated.jsonl",
    ),
    Output(
        "sharegpt",
        "anon8231489123/ShareGPT_Vicuna_unfiltered",
        "ShareGPT_V3_unfiltered_cleaned_split.json",
    ),
    Output(
        "ultrachat",
        "HuggingFaceH4/ultrachat_200k",
        "data/train_sft-00000-of-00001.parquet",
        ULTRACHAT,
    ),
    Output(
        "ultrachat_test",
        "HuggingFaceH4/ultrachat_200k",
        "data/test_sft-00000-of-00001.parquet",
        ULTRACHAT,
    ),
    Output(
        "perfectblend",
        "mlabonne/open-perfectblend",
        "data/train-00000-of-00001.parquet",
        pa.schema([("conversations", SHAREGPT), ("source", STR)]),
    ),
    Output(
        "infinity_instruct",
        "BAAI/Infinity-Instruct",
        "0625/train-00000-of-00001.parquet",
        pa.schema(
            [
                ("id", INT),
                ("conversations", SHAREGPT),
                ("label", LABEL),
                ("langdetect", STR),
                ("source", STR),
            ]
        ),
    ),
)


def read_rows(path: Path) -> list[Row]:
    """Read one content file; each line is a JSON object."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def to_json(row: Row | list[Row], indent: int | None = None) -> str:
    """Encode to JSON: readable UTF-8, with lone surrogates as escapes (UTF-8 cannot hold them)."""
    text = json.dumps(row, ensure_ascii=False, indent=indent)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def write(output: Output, rows: list[Row], folder: Path) -> None:
    """Write one output file under `folder`."""
    path = folder / output.repo.replace("/", "__") / output.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if output.schema is not None:
        table = pa.Table.from_pylist(rows, schema=output.schema)
        pq.write_table(table, path, compression="snappy")
    elif path.suffix == ".jsonl":
        path.write_bytes("".join(to_json(row) + "\n" for row in rows).encode())
    else:
        path.write_bytes((to_json(rows, indent=2) + "\n").encode())


def build(content: Path, folder: Path) -> dict[str, int]:
    """Write all datasets and return the number of rows of each content file."""
    counts = {}
    for output in OUTPUTS:
        rows = read_rows(content / f"{output.content}.jsonl")
        write(output, rows, folder)
        counts[output.content] = len(rows)
    return counts


def main() -> None:
    """Parse the arguments and build."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--content", type=Path, default=HERE / "content", help="source folder")
    parser.add_argument("--out", type=Path, default=HERE / "datasets", help="target folder")
    args = parser.parse_args()
    for name, count in build(args.content, args.out).items():
        print(f"{name}: {count} rows")


if __name__ == "__main__":
    main()
