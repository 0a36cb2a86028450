"""From the turns that an adapter found to a prompt: roles, parts, text, reject rules.

Nothing here knows a target or a tokenizer; `aerie.prompts.limits` does. The steps run in one fixed
order: roles, content parts, text repair, merging of user turns, stripping of a leading assistant,
reject rules, tools.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from aerie.contracts.prompts import Flag, Reason
from aerie.prompts.rejected import Rejected
from aerie.prompts.tools import read_tools
from aerie.prompts.turns import ROLES, list_of_turns, raw_content, repaired, role_of, text_of

__all__ = ["Conversation", "Normalised", "Rejected", "normalise"]

_CONTENTLESS = re.compile(
    r"(please )?(continue|proceed|go on|go ahead|keep going|carry on|more|next)( please)?"
    r"|(please )?continue (from )?where you (left off|stopped)"
    r"|ok|okay|yes|no|y|n|sure"
    r"|继续|继续写|请继续|続けて|続き|계속|продолжай|продолжи|continuez|continúa|continua|weiter"
)
_PLACEHOLDER = re.compile(
    r"[-_]+|n/?a|none|null|nil|nan|undefined|tbd|todo|placeholder|[<\[{](prompt|placeholder)[>\]}]"
)
_STRINGIFIED_PARTS = re.compile(r"\s*\[\s*\{\s*['\"]type['\"]\s*:")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# The longest text that the two patterns take, with room for marks and white space around it.
_SHORT = 80

# An answer belongs to the prompt that it was given to. After these it is another prompt.
_OTHER_PROMPT = frozenset(
    {
        Flag.ISSUE_EXTRACTED,
        Flag.FOREIGN_TOOL_PROMPT_REMOVED,
        Flag.FOREIGN_SYSTEM_REMOVED,
        Flag.LEADING_ASSISTANT_STRIPPED,
        Flag.MERGED_CONSECUTIVE_TURNS,
        Flag.BAD_TURN_SKIPPED,
        Flag.CHUNK_CONTINUATION,
    }
)


@dataclass(slots=True)
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


@dataclass(slots=True)
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
    messages = list_of_turns(found.messages, flags)
    if found.system is not None:
        messages = [{"role": "system", "content": found.system}, *messages]
    # What is wrong with a system text that will not be kept is of no concern.
    system, users = _dialogue(messages, flags, flags if keeps_system else set())
    if system is not None and not keeps_system:
        flags.add(Flag.FOREIGN_SYSTEM_REMOVED)
        system = None
    _refuse_empty_talk(users[0])
    if len(users) > max_turns:
        users = users[:max_turns]
        flags.add(Flag.LATER_TURNS_DROPPED)
    for text in users:
        if _STRINGIFIED_PARTS.match(text):
            flags.add(Flag.LOOKS_LIKE_STRINGIFIED_PARTS)
    tools = None if found.tools is None else read_tools(found.tools, flags)
    native = None
    if found.native and not flags & _OTHER_PROMPT:
        native = _answers(messages, len(users))
    return Normalised(
        system, users, tools, tuple(sorted(flags)), found.identity, found.stratum, native
    )


def _dialogue(
    messages: list[dict[str, Any]], flags: set[str], system_flags: set[str]
) -> tuple[str | None, list[str]]:
    """The system text before everything else, and the user turns.

    Answers are made anew by the target: what the old ones hold does not matter.
    """
    system: str | None = None
    users: list[str] = []
    before = ""
    misplaced = False
    for turn in messages:
        name = turn.get("role") or turn.get("from")
        role = ROLES.get(name) if name.__class__ is str else None
        if role is None:
            role = role_of(turn)
        if role == "user":
            content = turn.get("content") or turn.get("value")
            text = repaired(content, flags) if content.__class__ is str else text_of(turn, flags)
            if turn.get("name"):
                flags.add(Flag.NAME_REMOVED)
            if before == "user":
                users[-1] = "\n\n".join(part for part in (users[-1], text) if part.strip())
                flags.add(Flag.MERGED_CONSECUTIVE_TURNS)
            else:
                users.append(text)
        elif role == "system":
            text = text_of(turn, system_flags)
            if not text.strip():
                continue
            if system is None:
                system, misplaced = text, bool(users)
            elif before == "system":
                system = f"{system}\n\n{text}"
                system_flags.add(Flag.MERGED_CONSECUTIVE_TURNS)
            else:
                misplaced = True
        elif not users:
            flags.add(Flag.LEADING_ASSISTANT_STRIPPED)
        before = role
    if not users:
        raise Rejected(Reason.NO_USER_TURN)
    _refuse_empty_turns(users, flags)
    if misplaced:
        raise Rejected(Reason.SYSTEM_NOT_FIRST)
    return system, users


def _refuse_empty_turns(users: list[str], flags: set[str]) -> None:
    while len(users) > 1 and _is_blank(users[-1]):
        users.pop()
        flags.add(Flag.TRAILING_EMPTY_TURN_REMOVED)
    for number, text in enumerate(users, 1):
        if _is_blank(text):
            raise Rejected(Reason.EMPTY_PROMPT, f"user turn {number} is empty")


def _refuse_empty_talk(text: str) -> None:
    text = text.strip()
    if len(text) > _SHORT and _LETTER_OR_DIGIT.search(text):
        return
    words = " ".join(text.casefold().split())
    if _PLACEHOLDER.fullmatch(words):
        raise Rejected(Reason.PLACEHOLDER_PROMPT, f"the prompt is {words!r}")
    bare = " ".join(re.findall(r"\w+", words))
    if _CONTENTLESS.fullmatch(bare) or all(map(_says_nothing, words)):
        raise Rejected(Reason.CONTENTLESS_PROMPT, f"the prompt is {words!r}")


def _answers(messages: list[dict[str, Any]], count: int) -> str | None:
    """The answers of the first `count` user turns, if each was answered by one assistant turn."""
    answers: list[dict[str, Any]] = []
    asked = 0
    for turn in messages:
        role = role_of(turn)
        if role == "user":
            asked += 1
            if asked > count:
                break
        elif role != "system":
            reasoning = turn.get("reasoning_content") or turn.get("reasoning")
            answers.append(
                {
                    "reasoning": reasoning,
                    "content": raw_content(turn),
                    "tool_calls": turn.get("tool_calls"),
                }
            )
            if role != "assistant" or len(answers) != asked:
                return None
    return json.dumps(answers) if len(answers) == count else None


def _says_nothing(character: str) -> bool:
    # U+FFFD stands for what was lost.
    return character == "\ufffd" or unicodedata.category(character)[0] in "PZC"


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
