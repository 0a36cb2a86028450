"""The turns of a row: who speaks, and what is said."""

from typing import Any

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.nested import inner_value, without_none
from aerie.prompts.rejected import Rejected
from aerie.prompts.text import repair

ROLES = {
    "system": "system",
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "bing", "bard", "ai", "model", "tool_call"), "assistant"
    ),
    **dict.fromkeys(
        ("tool", "function", "observation", "function_response", "tool_response"), "tool"
    ),
}

_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n")


def list_of_turns(messages: Any, flags: set[str]) -> list[dict[str, Any]]:
    """The turns of a messages column: a list, a single turn, or either as a JSON string.

    Raises:
        Rejected: there are none, or the string is not JSON.
    """
    decoded = isinstance(messages, str) and messages.strip()
    if decoded:
        messages = inner_value(messages, "messages")
        flags.add(Flag.JSON_STRING_DECODED)
    if isinstance(messages, dict):
        messages = [messages]
    if not isinstance(messages, list) or not messages:
        raise Rejected(Reason.NO_MESSAGES)
    for turn in messages:
        # Nearly all rows are lists of plain turns, and stay the lists that they are.
        if turn.__class__ is not dict or _role_name(turn) is None or turn.get("tool_calls"):
            return _sift(messages, flags, padded=not decoded)
    return messages


def role_of(turn: dict[str, Any]) -> str:
    """The role of a turn: `system`, `user`, `assistant` or `tool`.

    Raises:
        Rejected: the role is missing or unknown: a template would render it as it stands.
    """
    name = _role_name(turn)
    if isinstance(name, str):
        role = ROLES.get(name) or ROLES.get(name.strip().lower())
        if role is not None:
            return role
    raise Rejected(Reason.UNKNOWN_ROLE, f"role {name!r}")


def text_of(turn: dict[str, Any], flags: set[str]) -> str:
    """The repaired text of a turn; what was done to it is added to `flags`.

    Raises:
        Rejected: the content is not text.
    """
    content = raw_content(turn)
    if content.__class__ is str:
        return repaired(content, flags)
    if content is None:
        return ""
    if isinstance(content, list | dict):
        flags.add(Flag.CONTENT_PARTS_JOINED)
        return repaired(join_parts(content if isinstance(content, list) else [content]), flags)
    raise Rejected(Reason.BAD_CONTENT, f"content is {type(content).__name__}, not text")


def raw_content(turn: dict[str, Any]) -> Any:
    """What a turn says, as it is in the row, or None."""
    content = turn.get("content")
    if content is None:
        content = turn.get("value")
        if content is None:
            content = turn.get("text")
    return content


def repaired(text: str, flags: set[str]) -> str:
    """`text` as `aerie.prompts.text.repair` leaves it."""
    try:
        data = text.encode()
        # Far cheaper than a search in the text: nothing is removed from nearly all of them.
        if len(data.translate(None, _CONTROLS)) == len(data):
            return text
    except UnicodeEncodeError:
        pass
    text, repairs = repair(text)
    flags |= repairs
    return text


def join_parts(parts: list[Any]) -> str:
    """The text of a content that is a list of parts.

    Raises:
        Rejected: a part is not text.
    """
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and _is_text(part):
            texts.append(part.get("text") or "")
        elif part is not None:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Rejected(Reason.MULTIMODAL, f"a content part of type {kind!r}")
    if any(not isinstance(text, str) for text in texts):
        raise Rejected(Reason.BAD_CONTENT, "the text of a content part is not text")
    # Chat templates put the parts of a message together without a separator.
    return "".join(texts)


def _is_text(part: dict[str, Any]) -> bool:
    return (part.get("type") or ("text" if "text" in part else None)) in ("text", "input_text")


def _role_name(turn: dict[str, Any]) -> Any:
    name = turn.get("role")
    return turn.get("from") if name is None else name


def _sift(entries: list[Any], flags: set[str], padded: bool) -> list[dict[str, Any]]:
    # Arrow pads lists of unequal length, and files made from such tables hold turns of nothing.
    real = [entry for entry in entries if entry is not None and without_none(entry) != {}]
    turns = [entry for entry in real if isinstance(entry, dict)]
    if len(real) < len(entries) or (padded and any(map(_padded_calls, turns))):
        flags.add(Flag.NONE_PADDING_REMOVED)
    if len(turns) < len(real):
        flags.add(Flag.BAD_TURN_SKIPPED)
    if not turns:
        raise Rejected(Reason.NO_MESSAGES)
    return turns


def _padded_calls(turn: dict[str, Any]) -> bool:
    calls = turn.get("tool_calls")
    return isinstance(calls, list) and without_none(calls) != calls
