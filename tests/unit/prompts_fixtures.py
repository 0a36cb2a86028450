"""A tiny target and small datasets for the tests of the prompts phase."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aerie.contracts.sidecar import write_sidecar
from aerie.prompts.candidates import Settings, build
from aerie.prompts.inspect import Characters
from aerie.prompts.limits import TargetLimits
from aerie.target import Target, read_target

_TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant{% endif %}"
)


def word_target(folder: Path) -> Target:
    """A target with a tokenizer of words: each word, mark and special token is one token."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|secret|>": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<|secret|>"],
        chat_template=_TEMPLATE,
    )
    fast.save_pretrained(folder)
    write_sidecar(
        folder / "target.json",
        "target",
        [],
        {"layers": 1, "hidden_size": 1, "vocab_size": 4, "max_position": 64},
        {
            "name": "tiny",
            "revision": "0" * 32,
            "dtype": "float32",
            "end_token_ids": [2],
            "special_token_ids": [0, 1, 2, 3],
            "thinking_variable": None,
        },
    )
    return read_target(folder / "target.json")


def character_limits(max_characters: int = 100_000) -> TargetLimits:
    """Limits that need no tokenizer: a token is a character."""
    return TargetLimits(max_characters, ["<|secret|>"], Characters())


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON Lines, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as Parquet, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def question(text: Any) -> dict[str, Any]:
    """A row of `generic/messages`."""
    return {"messages": [{"role": "user", "content": text}]}


@functools.cache
def _shared_target() -> tuple[Target, TemporaryDirectory[str]]:
    folder = TemporaryDirectory()
    return word_target(Path(folder.name)), folder


def make_candidates(folder: Path, dataset: str, texts: Iterable[str], seed: int = 0) -> Path:
    """Candidates of a dataset, as the build makes them from a file; gives the sidecar."""
    target, _ = _shared_target()
    write_jsonl(folder / "rows.jsonl", map(question, sorted(set(texts))))
    wanted = Settings(dataset, "generic/messages", folder, seed=seed)
    build(wanted, target, folder)
    return folder / "candidates.json"
