"""Conversations with tools, in the notations of other models."""

import re
from typing import Any, ClassVar

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.adapters.base import Adapter, Category
from aerie.prompts.adapters.families import calls_unknown_tools
from aerie.prompts.nested import inner_value, json_objects
from aerie.prompts.normalise import Conversation
from aerie.prompts.rejected import Rejected
from aerie.prompts.turns import list_of_turns, raw_content, repaired, role_of

# The system text of a conversation, removed from it.
_NO_SYSTEM = {"role": "system", "content": None}


class Toucan(Adapter):
    # By Kimi-K2, not K2.5.
    id = "Agent-Ark/Toucan-1.5M"
    category = Category.AGENTIC
    licence = "Apache-2.0"
    attribution = "Agent-Ark, Toucan-1.5M"
    # The other configurations ask the same questions of other models.
    files = ("Kimi-K2/*.parquet",)
    columns = ("messages",)
    optional = ("available_tools", "tools")
    id_column = "uuid"
    # A system text that the template of Kimi-K2 has rendered, markers and all.
    declared: ClassVar[re.Pattern[str]] = re.compile(
        r"<\|im_system\|>tool_declare<\|im_middle\|>(.*?)<\|im_end\|>", re.DOTALL
    )
    rendered: ClassVar[re.Pattern[str]] = re.compile(
        r"\s*<\|im_system\|>system<\|im_middle\|>(.*?)(?:<\|im_end\|>)?\s*", re.DOTALL
    )

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = set()
        turns = list_of_turns(row["messages"], flags)
        tools = next((row[name] for name in self.optional if row[name] not in (None, "[]")), None)
        text = _system_text(turns)
        if found := self.declared.search(text):
            flags.add(Flag.TOOL_DECLARE_PARSED)
            tools = found[1]
            text = text[: found.start()] + text[found.end() :]
            unwrapped = self.rendered.fullmatch(text)
            turns = [{"role": "system", "content": unwrapped[1] if unwrapped else text}, *turns[1:]]
        return _with_tools(self, row, turns, tools, flags)


class HermesReasoningTraces(Adapter):
    id = "lambda/hermes-agent-reasoning-traces"
    category = Category.FAMILY
    licence = "Apache-2.0"
    attribution = "Lambda, hermes-agent-reasoning-traces"
    native = "moonshotai/Kimi-K2.5"
    # The files in the root are an older revision.
    files = ("data/kimi/*.parquet",)
    columns = ("conversations",)
    optional = ("tools", "category")
    stratum = "category"

    def find(self, row: dict[str, Any]) -> Conversation:
        # Kimi-K2.5 wrote it, but through a text protocol whose tokens are not its own.
        flags: set[str] = {Flag.NOT_TARGET_NATIVE}
        turns = list_of_turns(row["conversations"], flags)
        tools, turns = _without_tool_prompt(turns, row["tools"], flags, always=True)
        return _with_tools(self, row, turns, tools, flags)


class HermesFunctionCalling(Adapter):
    id = "NousResearch/hermes-function-calling-v1"
    category = Category.AGENTIC
    licence = "Apache-2.0"
    attribution = "Nous Research, hermes-function-calling-v1"
    files = ("func-calling*.json", "glaive-function-calling-5k.json", "json-mode-*.json")
    columns = ("conversations",)
    optional = ("tools",)

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = set()
        turns = list_of_turns(row["conversations"], flags)
        # The system text of the JSON-mode files is what is asked for, and stays.
        tools, turns = _without_tool_prompt(turns, row["tools"], flags, always=False)
        return _with_tools(self, row, turns, tools, flags)


class GlaiveFunctionCalling(Adapter):
    id = "glaiveai/glaive-function-calling-v2"
    category = Category.AGENTIC
    licence = "Apache-2.0"
    attribution = "Glaive AI, glaive-function-calling-v2"
    files = ("glaive-function-calling-v2.json",)
    columns = ("chat", "system")
    # Only these begin a turn: the words occur inside of texts too.
    speakers: ClassVar[re.Pattern[str]] = re.compile(
        r"(?:\A|\n\n\n)(USER|ASSISTANT|FUNCTION RESPONSE):[ \n]?"
    )
    roles: ClassVar = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}

    def find(self, row: dict[str, Any]) -> Conversation:
        flags: set[str] = {Flag.GLAIVE_CHAT_SPLIT}
        if not isinstance(row["chat"], str):
            raise Rejected(Reason.NO_MESSAGES)
        _, *pieces = self.speakers.split(repaired(row["chat"], flags).strip())
        turns = [
            {"role": self.roles[speaker], "content": text.strip()}
            for speaker, text in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        return self.conversation(row, turns, tools=self._tools(row), flags=frozenset(flags))

    def _tools(self, row: dict[str, Any]) -> list[Any] | None:
        system = row["system"] if isinstance(row["system"], str) else ""
        _, brace, rest = system.partition("{")
        if not brace:
            return None
        if tools := json_objects(brace + rest):
            return tools
        raise Rejected(Reason.BAD_INNER_JSON, "the functions of `system` are not JSON")


class XlamFunctionCalling(Adapter):
    id = "Salesforce/xlam-function-calling-60k"
    category = Category.AGENTIC
    licence = "CC-BY-4.0"
    attribution = "Salesforce, xlam-function-calling-60k"
    gated = True
    files = ("xlam_function_calling_60k.json",)
    columns = ("query", "tools")

    def find(self, row: dict[str, Any]) -> Conversation:
        return self.conversation(
            row, [{"role": "user", "content": row["query"]}], tools=row["tools"]
        )


_TEACHES = re.compile(r"<tools>|<tool_call>|function[- ]calling (AI )?model", re.IGNORECASE)
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)


def _without_tool_prompt(
    turns: list[dict[str, Any]], tools: Any, flags: set[str], *, always: bool
) -> tuple[Any, list[dict[str, Any]]]:
    """Tools and turns without a system text that teaches another model to call them."""
    text = _system_text(turns)
    if not text or not (always or _TEACHES.search(text)):
        return tools, turns
    flags.add(Flag.FOREIGN_TOOL_PROMPT_REMOVED)
    if tools in (None, "", "[]", []):
        tools = next(filter(None, map(_tools_between, _TOOLS.findall(text))), None)
    return tools, [_NO_SYSTEM, *turns[1:]]


def _tools_between(text: str) -> list[Any] | None:
    # The words that explain the tags hold tags as well.
    try:
        value = inner_value(text, "tools")
    except Rejected:
        return None
    tools = [value] if isinstance(value, dict) else value
    good = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    return tools if good else None


def _system_text(turns: list[dict[str, Any]]) -> str:
    content = raw_content(turns[0]) if role_of(turns[0]) == "system" else None
    return content if isinstance(content, str) else ""


def _with_tools(
    reader: Adapter, row: dict[str, Any], turns: list[dict[str, Any]], tools: Any, flags: set[str]
) -> Conversation:
    if calls_unknown_tools(turns, tools):
        flags.add(Flag.TOOLS_MISSING)
    return reader.conversation(row, turns, tools=tools, flags=frozenset(flags))
