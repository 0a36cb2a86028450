"""Answers as chat messages, read as the target said them.

A server without a reasoning parser returns `R</think>A`, one with a parser splits it; tool calls
come as a section of control tokens in the text or as objects; their ids may have been replaced.
Here all become one `Message`, or a reason not to use it. Text of messages is never stripped,
decoded or written anew: what is rendered from it later must be what was said.

Sources: the chat template of Kimi-K2.5 and MoonshotAI/Kimi-K2 `docs/tool_call_guidance.md`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from aerie.contracts.responses import ResponseFlag, ResponseReason

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL_BEGIN, _ARGUMENT_BEGIN = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"

_TRAILING_END = re.compile(r"(?:<\|im_end\|>\s*)+\Z")
_SPECIAL = re.compile(
    r"<\|(?:im_(?:end|user|assistant|system|middle)|(?:start|end)_header_id"
    r"|tool_calls_section_(?:begin|end)|tool_call_(?:begin|argument_begin|end)"
    r"|media_(?:begin|content|end|pad))\|>|\[(?:BOS|EOS|EOT|UNK|PAD)\]"
)
_SECTION = re.compile(
    rf"(?P<before>.*?){re.escape(SECTION_BEGIN)}(?P<calls>.*){re.escape(SECTION_END)}\s*", re.DOTALL
)
_CALL = re.compile(
    rf"\s*{re.escape(_CALL_BEGIN)}(?P<id>.*?){re.escape(_ARGUMENT_BEGIN)}(?P<arguments>.*?)"
    rf"{re.escape(_CALL_END)}\s*",
    re.DOTALL,
)
_CANONICAL_ID = re.compile(r"functions\.(?P<name>[^\s:]+):(?P<index>\d+)")
# What servers and clients make of a canonical id: `functions_NAME_0`, `NAME:0`.
_CHANGED_ID = re.compile(
    r"\s*(?:functions?[._-](?P<prefixed>[^\s:]+?)[:._-]|(?P<bare>[^\s:]+):)(?P<index>\d+)\s*"
)
# Bytes that were no character, and halves of pairs: the tokens behind them cannot be known.
_LOST = re.compile("[\ufffd\ud800-\udfff]")
_CUT = ("length", "max_tokens")
_FAILED = (None, "error", "abort", "content_filter")


class UnfitMessage(Exception):
    """A message that is not used. Raised and caught inside this package."""

    def __init__(self, reason: ResponseReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ToolCall:
    """A call: `id` is `functions.NAME:INDEX`, `arguments` a JSON object as it was written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """An answer. `reasoning` is None where the target was not to think; `flags` are repairs."""

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    flags: tuple[ResponseFlag, ...] = ()

    def as_chat(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        result: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            result["reasoning_content"] = self.reasoning
        if self.tool_calls:
            result["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return result


def read_record(record: Mapping[str, Any]) -> Message:
    """The message of a journalled request to a chat server.

    `record` holds `thinking`, `finish_reason`, `message`, and `error` where the request failed. It
    may hold the answer's token ids, as sampled and as encoded again.

    Raises:
        UnfitMessage: with the reason.
    """
    message, finish = record.get("message"), record.get("finish_reason")
    if record.get("error") or not isinstance(message, dict) or finish in _FAILED:
        _refuse(ResponseReason.REQUEST_FAILED)
    if finish in _CUT:
        _refuse(ResponseReason.TRUNCATED)
    read = read_message(message, thinking=bool(record.get("thinking", True)))
    if finish == "tool_calls" and not read.tool_calls:
        # The server read calls and did not return them.
        _refuse(ResponseReason.MALFORMED_TOOL_CALL)
    if _ids_differ(record):
        _refuse(ResponseReason.RETOKENISATION_MISMATCH)
    return read


def read_message(message: Mapping[str, Any], *, thinking: bool, calls_before: int = 0) -> Message:
    """The answer in a chat message with `content`, `reasoning_content` and `tool_calls`.

    `calls_before` is how many calls the conversation had: the index in a call's id counts them all.

    Raises:
        UnfitMessage: with the reason.
    """
    flags: set[ResponseFlag] = set()
    given = message.get("reasoning_content", message.get("reasoning"))
    reasoning = None if given is None else _without_end(text_of(given), flags)
    content = _without_end(text_of(message.get("content")), flags)
    calls = _call_list(message.get("tool_calls"))
    if not (content.strip() or reasoning or calls):
        _refuse(ResponseReason.EMPTY_ANSWER)
    reasoning, content = _split_thinking(reasoning, content, thinking)
    content, written = _split_section(content)
    if calls and written:
        _refuse(ResponseReason.SPECIAL_TOKEN_IN_TEXT)
    tool_calls = _with_ids(calls or written, calls_before, flags)
    if not (content.strip() or tool_calls):
        _refuse(ResponseReason.EMPTY_ANSWER)
    for text in (reasoning or "", content, *(call.arguments for call in tool_calls)):
        if _SPECIAL.search(text):
            _refuse(ResponseReason.SPECIAL_TOKEN_IN_TEXT)
        if _LOST.search(text):
            _refuse(ResponseReason.RETOKENISATION_MISMATCH)
    ordered = tuple(flag for flag in ResponseFlag if flag in flags)
    return Message(reasoning, content, tool_calls, ordered)


def is_canonical(id: str) -> bool:
    """Whether a call's id is one that Kimi's template reads back, `functions.NAME:INDEX`."""
    return _CANONICAL_ID.fullmatch(id) is not None


def think_reason(opened: int, closed: int, *, thinks: bool) -> ResponseReason | None:
    """What is wrong with an answer that holds so many think tags, one at its start not counted."""
    if not thinks:
        return ResponseReason.THINK_IN_INSTANT_MODE if opened or closed else None
    if not closed:
        return ResponseReason.MISSING_THINK_CLOSE
    return ResponseReason.MALFORMED_THINK if opened or closed > 1 else None


def text_of(content: Any) -> str:
    """Content as one text: None is empty, parts are put together as templates do.

    Raises:
        UnfitMessage: it holds something else than text.
    """
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    read = [text for text in texts if isinstance(text, str)]
    if len(read) < len(texts):
        _refuse(ResponseReason.BAD_CONTENT)
    return "".join(read)


def _refuse(reason: ResponseReason) -> NoReturn:
    raise UnfitMessage(reason)


def _ids_differ(record: Mapping[str, Any]) -> bool:
    lists = [
        value
        for name, value in record.items()
        if isinstance(value, list)
        and value
        and not name.startswith(("prompt", "input"))
        and all(type(id) is int for id in value)
    ]
    return any(ids != lists[0] for ids in lists)


def _without_end(text: str, flags: set[ResponseFlag]) -> str:
    found = _TRAILING_END.search(text)
    if not found:
        return text
    flags.add(ResponseFlag.END_TOKEN_TEXT_REMOVED)
    return text[: found.start()]


def _split_thinking(reasoning: str | None, content: str, thinking: bool) -> tuple[str | None, str]:
    if not thinking:
        tags = int(bool((reasoning or "").strip()))
        tags += content.count(THINK_OPEN) + content.count(THINK_CLOSE)
        if tags:
            _refuse(ResponseReason.THINK_IN_INSTANT_MODE)
        return None, content
    if not reasoning:
        # The prompt has opened the reasoning; some servers write that tag again.
        bare = content.lstrip()
        text = bare.removeprefix(THINK_OPEN) if bare.startswith(THINK_OPEN) else content
        if problem := think_reason(text.count(THINK_OPEN), text.count(THINK_CLOSE), thinks=True):
            _refuse(problem)
        reasoning, _, content = text.partition(THINK_CLOSE)
    elif any(tag in text for tag in (THINK_OPEN, THINK_CLOSE) for text in (reasoning, content)):
        _refuse(ResponseReason.MALFORMED_THINK)
    if SECTION_BEGIN in reasoning:
        # Calls are made after thinking, so its end was not said.
        _refuse(ResponseReason.MISSING_THINK_CLOSE)
    return reasoning, content


def _split_section(content: str) -> tuple[str, list[dict[str, Any]]]:
    """The text before a section of tool calls, and the calls."""
    section = _SECTION.fullmatch(content)
    if not section:
        return content, []
    calls, position = [], 0
    while position < len(section["calls"]):
        call = _CALL.match(section["calls"], position)
        if not call:
            _refuse(ResponseReason.SPECIAL_TOKEN_IN_TEXT)
        calls.append({"id": call["id"], "arguments": call["arguments"]})
        position = call.end()
    if not calls:
        _refuse(ResponseReason.MALFORMED_TOOL_CALL)
    return section["before"], calls


def _call_list(value: Any) -> list[dict[str, Any]]:
    """Calls as `{id, name, arguments}`: those of chat servers have the last two in `function`."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError:
            _refuse(ResponseReason.MALFORMED_TOOL_CALL)
    if value is not None and not isinstance(value, list):
        _refuse(ResponseReason.MALFORMED_TOOL_CALL)
    calls = []
    for call in value or []:
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            _refuse(ResponseReason.MALFORMED_TOOL_CALL)
        calls.append({"id": call.get("id"), **inner})
    return calls


def _with_ids(
    calls: list[dict[str, Any]], index: int, flags: set[ResponseFlag]
) -> tuple[ToolCall, ...]:
    result = []
    for call in calls:
        id, name = call.get("id"), call.get("name")
        found = _canonical_id(id if isinstance(id, str) else "", name, index)
        if found != id:
            flags.add(ResponseFlag.TOOL_ID_REWRITTEN)
        parts = _CANONICAL_ID.fullmatch(found)
        if not parts:
            _refuse(ResponseReason.MALFORMED_TOOL_CALL)
        index = max(index, int(parts["index"])) + 1
        result.append(ToolCall(found, parts["name"], _arguments(call.get("arguments"))))
    return tuple(result)


def _canonical_id(id: str, name: str | None, index: int) -> str:
    """`id` if it is canonical, else what it was before it was changed, else the next in order."""
    canonical = _CANONICAL_ID.fullmatch(id)
    if canonical and name in (None, canonical["name"]):
        return id
    changed = _CHANGED_ID.fullmatch(id)
    said = (changed["prefixed"] or changed["bare"]) if changed else None
    if changed and said and (name is None or _plain(said) == _plain(name)):
        return f"functions.{name or said}:{int(changed['index'])}"
    if name is None:
        # The id is all that names the function.
        _refuse(ResponseReason.MALFORMED_TOOL_CALL)
    return f"functions.{name}:{index}"


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _arguments(value: Any) -> str:
    """The arguments as they were written; an object, as Kimi's template would write it."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
    try:
        is_object = isinstance(text, str) and isinstance(
            json.loads(text, parse_constant=_no_constant), dict
        )
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        _refuse(ResponseReason.BAD_TOOL_ARGUMENTS)
    return str(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
