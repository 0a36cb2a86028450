"""The configuration: its schema file, and errors that say where, what and what to do."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie.__main__ import SCHEMA, schema_text
from aerie.config import ROOT, Config, load, validate
from aerie.errors import ConfigError
from aerie.states.settings import StatesSettings

TEXT = """\
work: results/demo
target:
  name: Tiny
  source:
    path: models/tiny
datasets:
  chat:
    adapter: HuggingFaceH4/ultrachat_200k
    path: demo/chat
    take: 30
bench:
  suites:
    chat: demo/bench/chat.jsonl
"""


def changed(path: str, value: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(TEXT)
    node = data
    *above, last = path.split(".")
    for part in above:
        node = node.setdefault(part, {})
    node[last] = value
    return data


def problems(data: dict[str, Any]) -> str:
    text = yaml.safe_dump(data, sort_keys=False)
    with pytest.raises(ConfigError) as error:
        validate(data, text)
    return str(error.value)


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    config = load(file)
    assert config.datasets["chat"].take == 30
    assert config.vocab.size == 32000
    assert list(config.drafts) == ["main"]


def test_round_trip() -> None:
    config = validate(yaml.safe_load(TEXT))
    assert Config.model_validate_json(config.as_json()) == config
    assert StatesSettings.model_validate_json(config.states.as_json()) == config.states


def test_a_dataset_has_its_own_length_of_answers() -> None:
    data = yaml.safe_load(TEXT)
    data["datasets"]["proofs"] = {**data["datasets"]["chat"], "max_new_tokens": 9000}
    config = validate(data)
    assert config.responses_of("chat") == config.responses
    own = config.responses_of("proofs")
    assert own == config.responses.model_copy(update={"max_new_tokens": 9000})


def test_sections_are_equal_text_for_equal_content() -> None:
    spelled = copy.deepcopy(yaml.safe_load(TEXT))
    spelled["states"] = {"batch_tokens": 4096}
    assert validate(spelled).as_json() == validate(yaml.safe_load(TEXT)).as_json()


def test_schema_file_is_in_step_with_the_models() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), (
        "run `python -m aerie schema --write`"
    )


def test_every_key_is_described() -> None:
    schema = Config.model_json_schema()
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        for key, field in section["properties"].items():
            assert "description" in field or "$ref" in field, f"{name}.{key}"


@pytest.mark.parametrize(
    ("path", "value", "line", "expected"),
    [
        ("vocab.size", 100, 15, ["vocab.size", "100", "multiple of 64", "use a multiple of 64"]),
        ("datasets.chat.take", 0, 10, ["datasets.chat.take", "0", "greater than or equal to 1"]),
        ("datasets.chat.mode", "slow", 11, ["datasets.chat.mode", "'slow'", "thinking"]),
        ("target.source.path", 3, 5, ["target.source.path", "3"]),
        ("states.layers", "all", 15, ["states.layers", "'all'", "three ascending layers"]),
        ("bench.k", 99, 14, ["bench.k", "99", "draft tokens of a round"]),
        ("bench.suites.mix", "own.jsonl", 12, ["bench.suites", "`mix` is the suite of"]),
        ("bench.held_out", -1, 14, ["bench.held_out", "greater than or equal to 0"]),
    ],
)
def test_a_bad_value_names_line_field_value_and_remedy(
    path: str, value: Any, line: int, expected: list[str]
) -> None:
    message = problems(changed(path, value))
    assert f"line:     {line}\n" in message
    assert "remedy:" in message
    for part in expected:
        assert part in message


def test_an_unknown_key_lists_the_known_ones() -> None:
    message = problems(changed("vocab.sise", 8192))
    assert "vocab.sise" in message
    assert "unknown key" in message
    assert "dataset_floor, floor, size" in message


def test_a_missing_key_is_named() -> None:
    data = yaml.safe_load(TEXT)
    del data["datasets"]["chat"]["take"]
    message = problems(data)
    assert "datasets.chat.take" in message
    assert "prompts wanted" in message


def test_all_problems_are_told_at_once() -> None:
    data = changed("vocab.size", 1)
    data["bench"]["k"] = 0
    message = problems(data)
    assert "2 problems" in message
    assert "vocab.size" in message
    assert "bench.k" in message


@pytest.mark.parametrize("content", ["a: [", None, "", "just text", "- a\n- b"])
def test_what_is_not_a_configuration(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(file)


def test_command_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT)
    run = [sys.executable, "-m", "aerie"]
    good = subprocess.run(
        [*run, "config", file], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (good.returncode, good.stdout) == (0, "OK\n")
    file.write_text(TEXT + "seeds: 3\n")
    bad = subprocess.run(
        [*run, "config", file], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert bad.returncode == 1
    assert "seeds" in bad.stderr
    assert "line:     14" in bad.stderr
    schema = subprocess.run([*run, "schema"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert schema.stdout == schema_text()
