"""What people ask an assistant, and conversations with the target itself."""

import re
from typing import Any

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.adapters.base import Adapter, Category
from aerie.prompts.adapters.families import Messages
from aerie.prompts.nested import inner_json
from aerie.prompts.normalise import Conversation
from aerie.prompts.rejected import Rejected
from aerie.prompts.turns import list_of_turns, raw_content, role_of


class ShareGpt(Adapter):
    id = "anon8231489123/ShareGPT_Vicuna_unfiltered"
    category = Category.CHAT
    # As its tag says; the conversations were scraped.
    licence = "Apache-2.0"
    attribution = "anon8231489123, ShareGPT_Vicuna_unfiltered"
    files = ("ShareGPT_V3_unfiltered_cleaned_split.json",)
    columns = ("conversations",)
    optional = ("id",)

    def find(self, row: dict[str, Any]) -> Conversation:
        # Long conversations were cut into chunks: `abc_0` begins one, `abc_5` goes on with it.
        chunk = re.search(r"_(\d+)$", str(row["id"]))
        flags = {Flag.CHUNK_CONTINUATION} if chunk and int(chunk[1]) else set()
        return self.conversation(row, row["conversations"], flags=frozenset(flags))


class UltraChat(Messages):
    id = "HuggingFaceH4/ultrachat_200k"
    category = Category.CHAT
    licence = "MIT"
    attribution = "Hugging Face H4, ultrachat_200k"
    # `train_gen` repeats prompts of `train_sft`; the test splits are for evaluation.
    files = ("data/train_sft-*.parquet",)
    columns = ("messages",)
    id_column = "prompt_id"


class WildChat(Adapter):
    id = "allenai/WildChat-1M"
    category = Category.CHAT
    licence = "ODC-By-1.0"
    attribution = "Allen Institute for AI, WildChat-1M"
    files = ("data/train-*.parquet",)
    columns = ("conversation", "toxic", "redacted")
    optional = ("language",)
    stratum = "language"
    id_column = "conversation_hash"

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = set()
        turns = list_of_turns(row["conversation"], flags)
        if row["redacted"] or any(map(_is_redacted, turns)):
            raise Rejected(Reason.REDACTED)
        if row["toxic"] or any(turn.get("toxic") for turn in turns):
            raise Rejected(Reason.TOXIC)
        return self.conversation(row, turns, flags=frozenset(flags))


class KimiMtp(Adapter):
    # Answers by Kimi-K2.5, markers and thoughts in one text.
    id = "lightseekorg/kimi-mtp-dataset"
    category = Category.EAGLE3
    licence = "unknown"
    attribution = "LightSeek, kimi-mtp-dataset"
    native = "moonshotai/Kimi-K2.5"
    files = ("data/*.jsonl",)
    columns = ("conversations",)

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = set()
        turns = [_with_parts(turn, flags) for turn in list_of_turns(row["conversations"], flags)]
        return self.conversation(row, turns, flags=frozenset(flags))


def _is_redacted(turn: dict[str, Any]) -> bool:
    content = raw_content(turn)
    return bool(turn.get("redacted")) or (
        isinstance(content, str) and "<PRESIDIO_ANONYMIZED_" in content
    )


_PARTS = re.compile(r'\s*\[\s*\{\s*"')


def _with_parts(turn: dict[str, Any], flags: set[str]) -> dict[str, Any]:
    """The turn with a content that is a JSON list of parts in a string as that list."""
    content = raw_content(turn)
    if not isinstance(content, str) or not _PARTS.match(content) or role_of(turn) != "user":
        return turn
    try:
        parts = inner_json(content, "parts")
    except Rejected:
        # Text that only begins like that; the normaliser flags it.
        return turn
    if not all(isinstance(part, dict) and "type" in part for part in parts):
        return turn
    flags.add(Flag.JSON_STRING_DECODED)
    return {"role": "user", "content": parts}
