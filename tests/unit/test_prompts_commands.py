"""`aerie adapters`, `aerie normalise` and `aerie inspect`, as a person types them."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from aerie.config import ROOT, load
from aerie.errors import DataError
from aerie.prompts.adapters import adapter, adapters
from aerie.prompts.contamination import Contamination
from aerie.prompts.inspect import Judge, limits_of, normalise_file
from aerie.prompts.show import adapter_table, dataset_path, show_rows
from aerie.prompts.source import Source
from tests import commands
from tests.unit.prompts_fixtures import question, word_target, write_jsonl

BAD_ROWS = ROOT / "tests" / "fixtures" / "bad_rows"


def aerie(*arguments: str, code: int = 0) -> str:
    """What the command prints, errors after the rest."""
    done = commands.aerie(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def shown(dataset: str, path: Path, rows: int = 2, scan: int = 1000) -> str:
    reader = adapter(dataset)
    judge = Judge(reader, limits_of(None, 6000), Contamination([]), 4)
    console = Console(file=io.StringIO(), width=140, record=True)
    show_rows(console, Source(path, reader), judge, rows, scan)
    return console.export_text()


def test_the_list_of_adapters() -> None:
    listed = {entry["id"]: entry for entry in json.loads(aerie("adapters", "--json"))}
    assert listed.keys() == adapters().keys()
    xlam = listed["Salesforce/xlam-function-calling-60k"]
    assert (xlam["gated"], xlam["licence"]) == (True, "CC-BY-4.0")
    claims = {id for id, entry in listed.items() if entry["native"]}
    assert claims == {"lightseekorg/kimi-mtp-dataset", "lambda/hermes-agent-reasoning-traces"}
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(adapter_table())
    text = "".join(console.export_text().split())
    assert "multi-languagecoding" in text and "spreadbydomain" in text


def test_normalise_prints_one_object_a_line() -> None:
    file = BAD_ROWS / "generic__contamination.jsonl"
    lines = aerie("normalise", "generic__contamination", str(file)).splitlines()
    first, second = map(json.loads, lines)
    assert (first["line"], first["action"], first["reason"]) == (1, "drop", "benchmark_overlap")
    fields = "line id action reason flags system user_turns tool_names"
    assert list(second) == fields.split()
    assert second["action"] == "keep"
    without = aerie("normalise", "generic/messages", str(file), "--benchmark", "/dev/null")
    assert json.loads(without.splitlines()[0])["action"] == "keep"


def test_normalise_explains_mistakes(tmp_path: Path) -> None:
    file = str(BAD_ROWS / "generic__messages.jsonl")
    assert "there is no adapter 'a/b'" in aerie("normalise", "a__b", file, code=1)
    missing = aerie("normalise", "generic/messages", str(tmp_path / "x.jsonl"), code=1)
    assert "x.jsonl is missing" in missing and "unexpected" not in missing


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", (question(f"Why {n}? " * 50) for n in range(2000)))
    command = f"{sys.executable} -m aerie normalise generic/messages {file} | head -n 1"
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["line"] == 1


def test_normalise_with_a_target(tmp_path: Path) -> None:
    word_target(tmp_path / "target")
    file = write_jsonl(tmp_path / "rows.jsonl", [question("a <|secret|>"), question("a " * 70)])
    target = tmp_path / "target" / "target.json"
    outcomes = list(normalise_file("generic/messages", file, target=target))
    assert [one["reason"] for one in outcomes] == ["special_token_in_text", "prompt_too_long"]
    outcomes = list(normalise_file("generic/messages", file, max_turns=1))
    assert [one["action"] for one in outcomes] == ["keep", "keep"]


def test_inspect_shows_some_rows_of_each_outcome() -> None:
    text = shown("mlabonne/open-perfectblend", ROOT / "demo/datasets/mlabonne__open-perfectblend")
    assert "kept: 66 of 73 rows" in text
    for reason in ("no_messages", "no_user_turn", "system_not_first", "prompt_too_long"):
        assert f"dropped {reason}: 1 of 73 rows (1.4%)" in text
    assert "repaired leading_assistant_stripped: 1 of 73 rows" in text
    assert "answers before the first question were removed" in text
    assert text.count("│ train-") == 2 + 7


def test_inspect_looks_at_no_more_rows_than_it_is_told(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", [question(f"Why {n}?") for n in range(9)])
    assert "kept: 4 of 4 rows" in shown("generic/messages", file, scan=4)
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"messages": [{"role": "user", "content": "cut \\ud83d\n')
    assert "dropped bad_json: 1 of 10 rows" in shown("generic/messages", file)


def test_inspect_finds_the_datasets_of_a_configuration() -> None:
    config = load(ROOT / "demo" / "config.yaml")
    name, entry = next(iter(config.datasets.items()))
    assert dataset_path(config, entry.adapter) == Path(str(entry.path))
    assert dataset_path(config, name) == Path(str(entry.path))
    with pytest.raises(DataError, match="has no dataset somebody/else"):
        dataset_path(config, "somebody/else")


def test_the_command_of_the_checkout(tmp_path: Path) -> None:
    link = tmp_path / "aerie"
    link.symlink_to(ROOT / "scripts" / "aerie")
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("`make setup` has made no .venv in this checkout")
    done = subprocess.run(
        [link, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "usage: aerie" in done.stdout
