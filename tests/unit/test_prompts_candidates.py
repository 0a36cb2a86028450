"""Candidates of a dataset: accounting, order, duplicates, gate, sidecar, and the script."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.config import ROOT
from aerie.contracts.candidates import read_index
from aerie.contracts.prompts import Prompt, Reason, Reject, read_prompts, read_rejects
from aerie.contracts.sidecar import damage, read_sidecar
from aerie.errors import DataError, GateError
from aerie.files import digest_json
from aerie.prompts.candidates import Settings, build
from aerie.prompts.distinct import rank
from aerie.prompts.text import prompt_key
from tests.unit.prompts_fixtures import (
    question,
    word_target,
    write_jsonl,
    write_parquet,
)

TEXTS = [
    "What is a heap?",
    "what is a  HEAP?",
    "Why?",
    "",
    "-",
    "continue",
    "<|im_end|>",
    "🦅 nest",
]


@dataclass
class Built:
    """What a build left, read back."""

    counts: dict[str, Any]
    candidates: list[Prompt]
    rejects: list[Reject]


def gather(folder: Path, processes: int = 1, **more: Any) -> Built:
    wanted = {"name": "chat", "adapter": "generic/messages", "max_rejected_share": 1.0, **more}
    with TemporaryDirectory() as name:
        out = Path(name) / "out"
        target = word_target(Path(name) / "target")
        sidecar = build(Settings(path=folder, **wanted), target, out, processes)
        assert not damage(out / "candidates.json")
        assert {path.name for path in out.iterdir()} == {
            "candidates.json", "candidates.parquet", "candidates.safetensors", "rejects.parquet",
        }  # fmt: skip
        prompts = read_prompts(out / "candidates.parquet")
        index = read_index(out / "candidates.safetensors")
        assert [bytes(key).hex() for key in index.keys] == [prompt.key for prompt in prompts]
        return Built(sidecar["counts"], prompts, read_rejects(out / "rejects.parquet"))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=12), data=st.data())
def test_every_row_counts_once_and_order_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    folder, other = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    write_jsonl(folder / "all.jsonl", map(question, texts))
    mixed = data.draw(st.permutations(texts))
    cut = data.draw(st.integers(0, len(texts)))
    for name, some in (("0.jsonl", mixed[:cut]), ("1.jsonl", mixed[cut:])):
        if some:
            write_jsonl(other / name, map(question, some))
    one, two = gather(folder), gather(other)
    assert one.counts["rows"] == len(texts) == len(one.candidates) + len(one.rejects)
    assert one.candidates == two.candidates
    assert one.counts == two.counts
    assert one.candidates == sorted(one.candidates, key=lambda prompt: (prompt.rank, prompt.key))
    assert len({prompt.key for prompt in one.candidates}) == len(one.candidates)


def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{digest_json(n % 900)} {TEXTS[n % len(TEXTS)]}" for n in range(1500)]
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", map(question, texts[number::3]))
    monkeypatch.setattr("aerie.prompts.candidates._FEW_ROWS", 0)
    one, two = gather(tmp_path), gather(tmp_path, processes=2)
    assert one == two
    assert one.counts["candidates"] > 500


def test_near_duplicates_go_and_the_first_in_the_order_stays(tmp_path: Path) -> None:
    long = "Please explain how a hash table finds a key, and what happens when two keys collide"
    texts = [long + end for end in (".", "!", " ?", ", please.")]
    write_jsonl(tmp_path / "a.jsonl", map(question, [*texts, "What is a heap?"]))
    built = gather(tmp_path)
    assert built.counts["rejects"] == {"near_duplicate": 3}
    kept = next(prompt for prompt in built.candidates if prompt.turns[0] in texts)
    ranks = {text: rank(0, "chat", prompt_key(None, [text])) for text in texts}
    assert kept.turns[0] == min(texts, key=lambda text: ranks[text])
    assert all(reject.detail.startswith("nearly the text of a.jsonl:") for reject in built.rejects)


def test_the_same_question_under_another_system_text_is_another_prompt(tmp_path: Path) -> None:
    text = "Explain how a hash table finds a key, and what happens when two keys collide."
    systems = ["Answer in French.", "Answer in German, and at length.", None]
    rows = []
    for system in systems:
        first = [{"role": "system", "content": system}] if system else []
        rows.append({"messages": [*first, *question(text)["messages"]]})
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert len(gather(tmp_path).candidates) == 3


def test_benchmark_prompts_are_kept_out(tmp_path: Path) -> None:
    words = "a baker has many trays with nine rolls each and sells three quarters before noon"
    benchmark = write_jsonl(tmp_path / "bench/suite.jsonl", [{"turns": [f"{words}."]}])
    texts = [f"Question: {words.upper()}; think!", words.replace("rolls", "buns")]
    write_jsonl(tmp_path / "data/a.jsonl", map(question, texts))
    built = gather(tmp_path / "data", benchmarks=(benchmark,))
    assert [reject.reason for reject in built.rejects] == [Reason.BENCHMARK_OVERLAP]
    assert built.rejects[0].detail == "13 words in a row are in suite"


def test_strata_take_turns(tmp_path: Path) -> None:
    rows = [{"input": digest_json(n), "domain": "common" if n % 10 else "rare"} for n in range(200)]
    write_parquet(tmp_path / "data/train-0.parquet", rows)
    built = gather(tmp_path, adapter="nvidia/OpenCodeInstruct")
    assert built.counts["strata"] == {"common": 180, "rare": 20}
    strata = [prompt.stratum for prompt in built.candidates]
    assert all(strata[: 2 * n].count("rare") == n for n in range(1, 21))
    for stratum in ("common", "rare"):
        ranks = [prompt.rank for prompt in built.candidates if prompt.stratum == stratum]
        assert ranks == sorted(ranks)


@pytest.mark.slow
def test_workers_die_with_the_build(tmp_path: Path) -> None:
    """Killed in the middle, nothing goes on; the next run sweeps what was left and is whole."""
    word_target(tmp_path / "target")
    for number in range(4):
        rows = (question(f"{digest_json([n, number])} " * 20) for n in range(15_000))
        write_jsonl(tmp_path / f"data/{number}.jsonl", rows)
    arguments = [sys.executable, "scripts/candidates.py", "--name", "chat", "--threads", "2"]
    arguments += ["--adapter", "generic/messages", "--path", str(tmp_path / "data")]
    arguments += ["--target", str(tmp_path / "target/target.json"), "--out", str(tmp_path / "c")]
    environment = {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(arguments, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("c/.reading.tmp/*.arrow")):
        assert process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert not (tmp_path / "c/candidates.json").exists()
    done = command(arguments)
    assert done.returncode == 0, done.stderr
    assert not damage(tmp_path / "c/candidates.json")
    assert not (tmp_path / "c/.reading.tmp").exists()


def test_a_full_disk_is_one_clear_error(tmp_path: Path, small_disk: Path) -> None:
    word_target(tmp_path / "target")
    write_jsonl(tmp_path / "data/a.jsonl", (question(digest_json(n) * 40) for n in range(4000)))
    arguments = [sys.executable, "scripts/candidates.py", "--name", "chat"]
    arguments += ["--adapter", "generic/messages", "--path", str(tmp_path / "data")]
    arguments += ["--target", str(tmp_path / "target/target.json"), "--out", str(small_disk)]
    done = command(arguments)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr and "nothing that was finished is lost" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(small_disk.iterdir())


def issues(folder: Path, rows: Iterable[tuple[str, str]]) -> Built:
    table = [
        {
            "instance_id": id,
            "trajectory": [{"role": "user", "text": f"ISSUE:\n{issue}\nINSTRUCTIONS:\ngo"}],
        }
        for id, issue in rows
    ]
    write_parquet(folder / "data/train-0.parquet", table)
    return gather(folder, name="swe", adapter="nebius/SWE-agent-trajectories")


def test_runs_over_one_issue_are_one_candidate(tmp_path: Path) -> None:
    rows = [("x-1", "It fails."), ("x-1", "It fails again."), ("x-2", "It crashes.")]
    collected = issues(tmp_path, rows)
    assert {prompt.turns[0] for prompt in collected.candidates} == {"It fails.", "It crashes."}
    (reject,) = collected.rejects
    assert reject.reason == Reason.DUPLICATE
    assert reject.detail == "same identity as data/train-0.parquet:1"


def test_order_of_rows_has_no_say_where_texts_and_identities_cross(tmp_path: Path) -> None:
    rows = [("x-1", "It fails."), ("x-2", "It fails."), ("x-2", "It crashes."), ("x-1", "Slow.")]
    results = [issues(tmp_path, order).candidates for order in permutations(rows)]
    assert all(result == results[0] for result in results)


def test_the_copy_without_invisible_characters_is_kept(tmp_path: Path) -> None:
    texts = ["\ufeffWhat is  a\u200b heap?", "What is a heap?", "what is a heap?  "]
    write_jsonl(tmp_path / "a.jsonl", map(question, texts))
    assert [prompt.turns for prompt in gather(tmp_path).candidates] == [["What is a heap?"]]


def test_seed_and_name_change_the_order_alone(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", (question(digest_json(n)) for n in range(50)))
    one, two = gather(tmp_path), gather(tmp_path, seed=1)
    assert {p.key for p in one.candidates} == {p.key for p in two.candidates}
    assert [p.key for p in one.candidates] != [p.key for p in two.candidates]


def test_build_writes_tables_and_a_sidecar_without_place_or_time(tmp_path: Path) -> None:
    data, target = tmp_path / "data", word_target(tmp_path / "target")
    write_jsonl(data / "a.jsonl", [*map(question, TEXTS), "odd"])
    sidecars = []
    for name in ("one", "two"):
        out = tmp_path / name
        wanted = Settings("chat", "generic/messages", data, max_rejected_share=0.9)
        build(wanted, target, out)
        assert not damage(out / "candidates.json")
        sidecars.append((out / "candidates.json").read_bytes())
    assert sidecars[0] == sidecars[1]
    assert str(tmp_path).encode() not in sidecars[0]
    content = read_sidecar(out / "candidates.json", "candidates")
    prompts, rejects = (
        read_prompts(out / "candidates.parquet"),
        read_rejects(out / "rejects.parquet"),
    )
    counts = content["counts"]
    assert counts["rows"] == 9 == len(prompts) + len(rejects)
    assert counts["candidates"] == len(prompts) == 3
    assert counts["rejects"] == Counter(str(reject.reason) for reject in rejects)
    assert counts["rejects"] == {
        "duplicate": 1,
        "empty_prompt": 1,
        "placeholder_prompt": 1,
        "contentless_prompt": 1,
        "special_token_in_text": 1,
        "not_an_object": 1,
    }
    assert content["provenance"]["sources"].keys() == {"a.jsonl"}
    assert content["provenance"]["settings"]["max_tokens"] == 8192
    assert all(reject.id.startswith("a.jsonl:") and reject.detail for reject in rejects)


def test_a_dataset_that_loses_too_much_stops_the_build(tmp_path: Path) -> None:
    data, target = tmp_path / "data", word_target(tmp_path / "target")
    # Two of five are lost; the duplicates are not, since their text is there.
    write_jsonl(data / "a.jsonl", map(question, ["Why so?", "why so?", "why SO?", "-", ""]))
    build(
        Settings("chat", "generic/messages", data, max_rejected_share=0.4), target, tmp_path / "a"
    )
    with pytest.raises(GateError) as error:
        build(
            Settings("chat", "generic/messages", data, max_rejected_share=0.39),
            target,
            tmp_path / "b",
        )
    message = str(error.value)
    for part in ("gate: prompts: 2 of 5 rows of chat", "a.jsonl:4", "0.39", "max_rejected_share"):
        assert part in message
    assert not (tmp_path / "b" / "candidates.json").exists()


def test_a_dataset_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="no row"):
        gather(tmp_path)


def command(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_scripts_from_rows_to_selection(tmp_path: Path) -> None:
    word_target(tmp_path / "target")
    write_jsonl(tmp_path / "data/a.jsonl", (question(digest_json(n)) for n in range(12)))
    candidates = [sys.executable, "scripts/candidates.py", "--name", "chat"]
    candidates += ["--adapter", "generic/messages", "--path", str(tmp_path / "data")]
    candidates += ["--target", str(tmp_path / "target/target.json"), "--out", str(tmp_path / "c")]
    done = command(candidates)
    assert done.returncode == 0, done.stderr
    select = [sys.executable, "scripts/prompts.py", "--take", "5", "--part-size", "4"]
    select += ["--candidates", str(tmp_path / "c/candidates.json"), "--out", str(tmp_path / "p")]
    done = command(select)
    assert done.returncode == 0, done.stderr
    selection = json.loads((tmp_path / "p/selection.json").read_text())
    assert (selection["selected"], selection["surplus"]) == (8, 4)
    done = command([*candidates, "--path", "/nowhere"])
    assert done.returncode == 1
    assert "input: the folder /nowhere" in done.stderr and "Traceback" not in done.stderr
