"""A tiny target and small datasets for the tests of the prompts phase."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aerie.contracts.prompts import Prompt, write_prompts, write_rejects
from aerie.contracts.sidecar import write_sidecar
from aerie.prompts.candidates import rank
from aerie.prompts.limits import TargetLimits
from aerie.prompts.normalise import Normalised
from aerie.prompts.text import prompt_key
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

    def count(prompt: Normalised) -> int:
        return len(prompt.system or "") + sum(map(len, prompt.turns))

    return TargetLimits(max_characters, ["<|secret|>"], count)


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


def make_candidates(folder: Path, dataset: str, texts: Iterable[str], seed: int = 0) -> Path:
    """Candidates of a dataset as `aerie.prompts.candidates` writes them; gives the sidecar."""
    prompts = []
    for text in sorted(set(texts)):
        key = prompt_key(None, [text])
        place = rank(seed, dataset, key)
        prompts.append(Prompt(f"{dataset}-{key}", dataset, key, place, "instant", None, [text]))
    prompts.sort(key=lambda prompt: (prompt.rank, prompt.key))
    write_prompts(folder / "candidates.parquet", prompts)
    write_rejects(folder / "rejects.parquet", [])
    write_sidecar(
        folder / "candidates.json",
        "candidates",
        [folder / "candidates.parquet", folder / "rejects.parquet"],
        {"rows": len(prompts), "candidates": len(prompts), "rejects": {}, "flags": {}},
        {
            "dataset": dataset,
            "adapter": "generic/messages",
            "category": "own data",
            "licence": "MIT",
        },
    )
    return folder / "candidates.json"
