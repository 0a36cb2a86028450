"""From the turns that an adapter found to a prompt: roles, parts, text, reject rules.

Nothing here knows a target or a tokenizer; `aerie.prompts.limits` does. The steps run in one fixed
order: roles, content parts, text repair, merging of user turns, stripping of a leading assistant,
reject rules.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from aerie.contracts.prompts import Reason
from aerie.prompts.text import repair

ROLES = {
    "system": "system",
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "ai", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}

_CONTENTLESS = re.compile(
    r"(please )?(continue|proceed|go on|go ahead|keep going|carry on|more|next)( please)?"
    r"|ok|okay|yes|no|y|n|sure|继续"
)
_PLACEHOLDER = re.compile(
    r"-+|n/?a|none|null|nil|nan|undefined|tbd|todo|placeholder|[<\[{](prompt|placeholder)[>\]}]"
)
_STRINGIFIED_PARTS = re.compile(r"\s*\[\s*\{\s*['\"]type['\"]\s*:")


class Rejected(Exception):
    """A row that does not become a prompt. Raised and caught inside this package."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Conversation:
    """What an adapter found in a row, as it was there.

    `messages` is normally a list of turns (`role` or `from`, `content` or `value`), `identity`
    names the thing asked about where a dataset asks about it many times, `stratum` the group (a
    language, a domain) that should have its share of the selection. `native` is set where the row
    claims that its answers are those of the target. `flags` is what the adapter did to the row.
    """

    messages: Any
    system: Any = None
    tools: Any = None
    identity: str | None = None
    stratum: str | None = None
    native: bool = False
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Normalised:
    """A prompt that no target has judged yet. `tools` is a JSON list as text, `flags` sorted.

    `native` is a JSON list with the answer of each turn, where the row claims to hold the target's.
    """

    system: str | None
    turns: list[str]
    tools: str | None = None
    flags: tuple[str, ...] = ()
    identity: str | None = None
    stratum: str | None = None
    native: str | None = None


def normalise(found: Conversation, *, keeps_system: bool, max_turns: int) -> Normalised:
    """The prompt of a conversation: its system text and its first `max_turns` user turns.

    Raises:
        Rejected: there is no prompt in it that could be asked as it stands.
    """
    flags = set(found.flags)
    turns = _merge(_read_turns(found, keeps_system, flags), flags)
    turns = _strip_leading_assistant(turns, flags)
    system = None
    if turns and turns[0][0] == "system":
        system = turns.pop(0)[1]
        turns = _strip_leading_assistant(turns, flags)
    users = _user_turns(turns, flags)
    if any(role == "system" for role, _ in turns):
        raise Rejected(Reason.SYSTEM_NOT_FIRST)
    _refuse_empty_talk(users[0])
    if len(users) > max_turns:
        flags.add("later_turns_dropped")
    if any(_STRINGIFIED_PARTS.match(text) for text in users[:max_turns]):
        flags.add("looks_like_stringified_parts")
    tools = read_tools(found.tools, flags)
    return Normalised(system, users[:max_turns], tools, tuple(sorted(flags)), found.identity)


def role_of(turn: dict[str, Any]) -> str:
    """The role of a turn in the words of `ROLES`.

    Raises:
        Rejected: the role is missing or unknown: a template would render it as it stands.
    """
    name = _first(turn, "role", "from")
    role = ROLES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise Rejected(Reason.UNKNOWN_ROLE, f"role {name!r}")
    return role


def text_of(turn: dict[str, Any], flags: set[str]) -> str:
    """The repaired text of a turn; what was done to it is added to `flags`.

    Raises:
        Rejected: the content is not text.
    """
    content = _first(turn, "content", "value", "text")
    if isinstance(content, list | dict):
        content = _join_parts(content if isinstance(content, list) else [content])
        flags.add("content_parts_joined")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise Rejected(Reason.BAD_CONTENT, f"content is {type(content).__name__}, not text")
    text, repairs = repair(content)
    flags |= repairs
    return text


def list_of_turns(messages: Any, flags: set[str]) -> list[dict[str, Any]]:
    """The turns of a messages column: a list, a single turn, or either as a JSON string.

    Raises:
        Rejected: there are none, or the string is not JSON.
    """
    if isinstance(messages, str) and messages.strip():
        messages = _inner_json(messages, "messages")
        flags.add("json_string_decoded")
    entries = [messages] if isinstance(messages, dict) else messages
    if not isinstance(entries, list) or not entries:
        raise Rejected(Reason.NO_MESSAGES)
    # Arrow pads lists of unequal length, and files made from such tables hold turns of nothing.
    real = [entry for entry in entries if entry is not None and _without_none(entry) != {}]
    if len(real) < len(entries):
        flags.add("none_padding_removed")
    turns = [entry for entry in real if isinstance(entry, dict)]
    if len(turns) < len(real):
        flags.add("bad_turn_skipped")
    if not turns:
        raise Rejected(Reason.NO_MESSAGES)
    return turns


def read_tools(value: Any, flags: set[str]) -> str | None:
    """A tools column as a JSON list in text, or None where there are no tools.

    Raises:
        Rejected: it is not a list of JSON objects, whole or as strings.
    """
    if isinstance(value, str):
        value = _inner_json(value, "tools") if value.strip() else None
    entries = [value] if isinstance(value, dict) else value or []
    if not isinstance(entries, list):
        raise Rejected(Reason.BAD_INNER_JSON, f"tools are {type(value).__name__}, not a list")
    tools = [_inner_json(tool, "tools") if isinstance(tool, str) else tool for tool in entries]
    if any(not isinstance(tool, dict) for tool in tools):
        raise Rejected(Reason.BAD_INNER_JSON, "a tool is not an object")
    if not tools:
        return None
    # Arrow gives every object of a column the keys of all of them, with None where one had none.
    without = _without_none(tools)
    if without != tools:
        flags.add("none_padding_removed")
    return repair(json.dumps(without, ensure_ascii=False))[0]


def _read_turns(found: Conversation, keeps_system: bool, flags: set[str]) -> list[tuple[str, str]]:
    turns = list_of_turns(found.messages, flags)
    if found.system is not None:
        turns = [{"role": "system", "content": found.system}, *turns]
    read = []
    for turn in turns:
        role = role_of(turn)
        if role == "system":
            if not _first(turn, "content", "value", "text"):
                continue
            if not keeps_system:
                flags.add("foreign_system_removed")
                continue
        if role == "user" and turn.get("name"):
            flags.add("name_removed")
        # Answers are made anew by the target: whatever the old ones hold is of no concern.
        read.append((role, text_of(turn, flags) if role in ("system", "user") else ""))
    return read


def _merge(turns: list[tuple[str, str]], flags: set[str]) -> list[tuple[str, str]]:
    merged: list[tuple[str, str]] = []
    for role, text in turns:
        if role == "user" and merged and merged[-1][0] == "user":
            texts = [part for part in (merged[-1][1], text) if part.strip()]
            merged[-1] = ("user", "\n\n".join(texts))
            flags.add("merged_consecutive_turns")
        else:
            merged.append((role, text))
    return merged


def _strip_leading_assistant(
    turns: list[tuple[str, str]], flags: set[str]
) -> list[tuple[str, str]]:
    start = 0
    while start < len(turns) and turns[start][0] in ("assistant", "tool"):
        start += 1
    if start:
        flags.add("leading_assistant_stripped")
    return turns[start:]


def _user_turns(turns: list[tuple[str, str]], flags: set[str]) -> list[str]:
    users = [text for role, text in turns if role == "user"]
    if not users:
        raise Rejected(Reason.NO_USER_TURN)
    while len(users) > 1 and not users[-1].strip():
        users.pop()
        flags.add("trailing_empty_turn_removed")
    for number, text in enumerate(users, 1):
        if not text.strip():
            raise Rejected(Reason.EMPTY_PROMPT, f"user turn {number} is empty")
    return users


def _refuse_empty_talk(text: str) -> None:
    words = " ".join(text.casefold().split())
    if _PLACEHOLDER.fullmatch(words):
        raise Rejected(Reason.PLACEHOLDER_PROMPT, f"the prompt is {words!r}")
    bare = " ".join(re.findall(r"\w+", words))
    if _CONTENTLESS.fullmatch(bare) or all(unicodedata.category(c)[0] in "PZC" for c in words):
        raise Rejected(Reason.CONTENTLESS_PROMPT, f"the prompt is {words!r}")


def _join_parts(parts: list[Any]) -> str:
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type", "text") == "text":
            texts.append(part.get("text") or "")
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Rejected(Reason.MULTIMODAL, f"a content part of type {kind!r}")
    if any(not isinstance(text, str) for text in texts):
        raise Rejected(Reason.BAD_CONTENT, "the text of a content part is not text")
    # Chat templates put the parts of a message together without a separator.
    return "".join(texts)


def _inner_json(text: str, column: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise Rejected(Reason.BAD_INNER_JSON, f"{column}: {error}") from error


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def _first(turn: dict[str, Any], *names: str) -> Any:
    return next((turn[name] for name in names if turn.get(name) is not None), None)
