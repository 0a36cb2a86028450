"""How fast the prompts phase is, on synthetic rows of realistic lengths.

Two figures: rows a second that are normalised and keyed, rows already in memory, and the time and
memory of the whole phase from rows in files to selected prompts, through the scripts that the
workflow runs. `docs/prompts.md` has what was measured.

    python benchmarks/prompts.py rows [--specforge PREPARE_DATA]
    python benchmarks/prompts.py phase --rows 1000000 --take 100000 --folder /tmp/aerie-bench
"""

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerie.files import write_json
from aerie.prompts.adapters import adapter
from aerie.prompts.normalise import Rejected, normalise
from aerie.prompts.text import fold, folded_key

ROOT = Path(__file__).resolve().parents[1]
DATASETS = 10
# Characters of user turns: the median, and the spread that gives about the 90th and 99th percentile
# of 17,671 conversations of ShareGPT (113, 1,832 and 10,723).
MEDIAN_CHARACTERS, SPREAD = 113, 1.95
ANSWER_CHARACTERS = 1_200
REPEATED, NEARLY_REPEATED, BROKEN = 0.10, 0.03, 0.01


class Texts:
    """Made-up prose: slices of one long run of the demo's own words, as often as they occur."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        files = sorted((ROOT / "demo/content").glob("*"))
        content = " ".join(file.read_text(encoding="utf-8") for file in files)
        words = re.findall(r"\b[A-Za-z]{1,15}\b", content)
        self.long = " ".join(self.random.choice(words, 2_000_000))

    def lengths(self, count: int) -> Any:
        drawn = MEDIAN_CHARACTERS * np.exp(SPREAD * self.random.standard_normal(count))
        return np.clip(drawn, 15, 30_000).astype(int)

    def slice(self, size: int) -> str:
        start = int(self.random.integers(0, len(self.long) - size))
        return self.long[start : start + size].strip() or "word"


def make_rows(texts: Texts, count: int) -> list[dict[str, Any]]:
    """Conversations of one to three exchanges, some repeated, nearly repeated or broken."""
    rows: list[dict[str, Any]] = []
    turns = texts.random.choice([1, 1, 1, 2, 3], count)
    lengths = iter(texts.lengths(int(turns.sum())).tolist())
    luck = texts.random.random(count)
    for number in range(count):
        messages = []
        for _ in range(turns[number]):
            messages.append({"role": "user", "content": texts.slice(next(lengths))})
            messages.append({"role": "assistant", "content": texts.slice(ANSWER_CHARACTERS)})
        if rows and luck[number] < REPEATED:
            messages = rows[int(texts.random.integers(len(rows)))]["messages"]
        elif rows and luck[number] < REPEATED + NEARLY_REPEATED:
            other = rows[int(texts.random.integers(len(rows)))]["messages"][0]["content"]
            messages[0]["content"] = other + " indeed"
        elif luck[number] > 1 - BROKEN:
            messages[0]["content"] = ""
        rows.append({"messages": messages})
    return rows


def key_rows(rows: list[dict[str, Any]]) -> int:
    """Normalise and key rows, as a process of the candidates phase does; gives the prompts."""
    reader = adapter("HuggingFaceH4/ultrachat_200k")
    done = 0
    for row in rows:
        try:
            prompt = normalise(reader.find(row), keeps_system=reader.keeps_system, max_turns=4)
        except Rejected:
            continue
        folded_key(fold(prompt.system or ""), "\n".join(map(fold, prompt.turns)))
        done += 1
    return done


_rows: list[dict[str, Any]] = []


def _prepare(seed: int, count: int) -> None:
    _rows.extend(make_rows(Texts(seed), count))


def _time_rows(_: int) -> float:
    start = time.perf_counter()
    key_rows(_rows)
    return time.perf_counter() - start


def measure_rows(count: int, processes: int, repeats: int) -> dict[str, Any]:
    """Rows a second that all processes together normalise and key: the median of `repeats`."""
    each = count // processes
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _prepare, (0, each)) as pool:
        list(pool.map(_time_rows, range(processes)))
        rounds = [max(pool.map(_time_rows, range(processes))) for _ in range(repeats)]
    rates = [processes * each / seconds for seconds in rounds]
    return {"processes": processes, "rows": processes * each, "rows_per_s": round(median(rates))}


def measure_peer(script: Path, count: int, repeats: int) -> dict[str, Any]:
    """SpecForge's row conversion and ours on the same rows, in turns and in this process.

    `script` is `scripts/prepare_data.py` of a checkout of SpecForge at a6b6b023. Its function
    renames the roles of a row, and the line that is written from it is part of the work; it drops,
    repairs and compares nothing. Ours normalises the row and keys the prompt.
    """
    found = importlib.util.spec_from_file_location("prepare_data", script)
    if found is None or found.loader is None:
        raise SystemExit(f"{script} is no Python file")
    peer = importlib.util.module_from_spec(found)
    found.loader.exec_module(peer)
    rows = make_rows(Texts(0), count)
    roles = {"user": "human", "assistant": "gpt"}
    theirs = [
        {
            "id": str(number),
            "conversations": [
                {"from": roles[turn["role"]], "value": turn["content"]} for turn in row["messages"]
            ],
        }
        for number, row in enumerate(rows)
    ]
    seconds: dict[str, list[float]] = {"specforge": [], "aerie": []}
    for _ in range(repeats):
        start = time.perf_counter()
        for row in theirs:
            json.dumps(peer.process_sharegpt_row(row)[0], ensure_ascii=False)
        seconds["specforge"].append(time.perf_counter() - start)
        start = time.perf_counter()
        key_rows(rows)
        seconds["aerie"].append(time.perf_counter() - start)
    rates = {name: round(count / median(each)) for name, each in seconds.items()}
    return {"rows_per_s": rates, "ratio": round(rates["aerie"] / rates["specforge"], 2)}


def make_datasets(folder: Path, rows: int) -> None:
    """Ten datasets in the schema of ultrachat_200k, Parquet of 1,000 rows a group."""
    for number in range(DATASETS):
        file = folder / f"set{number}/data/train_sft-00000.parquet"
        if file.exists():
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(make_rows(Texts(number), rows // DATASETS))
        pq.write_table(table, file, row_group_size=1000)


def run_scripts(script: str, arguments: list[list[str]], processes: int) -> float:
    """Run a script of the workflow once for each list, so many at a time; gives the seconds."""

    def run(each: list[str]) -> None:
        command = [sys.executable, str(ROOT / f"scripts/{script}.py"), *each]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})

    start = time.perf_counter()
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, arguments))
    return time.perf_counter() - start


def measure_phase(
    folder: Path, rows: int, take: int, target: Path, processes: int
) -> dict[str, Any]:
    """Seconds and resident bytes of all datasets, one a process, as the workflow runs them."""
    make_datasets(folder, rows)
    names = [f"set{number}" for number in range(DATASETS)]
    sidecars = [str(folder / f"candidates/{name}/candidates.json") for name in names]
    read = [
        ["--name", name, "--adapter", "HuggingFaceH4/ultrachat_200k",
         "--path", str(folder / name), "--target", str(target),
         "--out", str(folder / "candidates" / name)]
        for name in names
    ]  # fmt: skip
    select = [
        ["--take", str(take // DATASETS), "--candidates", sidecars[place],
         "--earlier", *sidecars[:place], "--out", str(folder / "prompts" / name)]
        for place, name in enumerate(names)
    ]  # fmt: skip
    seconds = {
        "candidates": run_scripts("candidates", read, processes),
        "prompts": run_scripts("prompts", select, processes),
    }
    selections = [
        json.loads((folder / f"prompts/{name}/selection.json").read_text()) for name in names
    ]
    return {
        "processes": processes,
        "rows": sum(selection["rows"] for selection in selections),
        "selected": sum(selection["selected"] for selection in selections),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "total_s": round(sum(seconds.values()), 1),
        "largest_process_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000,
    }


def main() -> None:
    """Measure what the command line asks for and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rows", "phase"))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--take", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--specforge", type=Path, help="its scripts/prepare_data.py, for rows")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/aerie-prompts-benchmark"))
    parser.add_argument("--target", type=Path, help="target.json, for the phase")
    parser.add_argument("--out", type=Path, help="also write the result here")
    options = parser.parse_args()
    if options.what == "rows":
        result = measure_rows(options.rows, options.processes, options.repeats)
        if options.specforge:
            result["peer"] = measure_peer(options.specforge, options.rows, options.repeats)
    else:
        result = measure_phase(
            options.folder, options.rows, options.take, options.target, options.processes
        )
    print(json.dumps(result, indent=2))
    if options.out:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
