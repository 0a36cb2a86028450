"""Answers that a dataset claims to have from the target: which of them need no inference.

A claim is never believed: each row is tested with the target at hand. What passes is, token for
token, what the target's own template makes of the conversation; whether the target would have said
it cannot be known, so the claimed model has to be the target. A conversation is used whole or not
at all, since a later answer rests on the earlier ones.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import Flag, Prompt
from aerie.contracts.responses import ResponseFlag, ResponseReason
from aerie.engines.base import Answer
from aerie.responses.checks import AnswerChecks
from aerie.responses.message import (
    SECTION_BEGIN,
    SECTION_END,
    THINK_CLOSE,
    THINK_OPEN,
    Message,
    UnfitMessage,
    read_message,
    text_of,
)
from aerie.responses.requests import Conversation, render_next
from aerie.target import Target, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What other models write: control tokens by their shape, and words of their protocols.
_MARKUP = re.compile(
    r"<\|[^\s|<>]{1,40}\|>|<｜[^\s<>]{1,40}｜>"
    r"|</?(?:tool_calls?|tool_response|function_calls?|functioncall|thinking|thought)>"
    r"|<(?:start|end)_of_turn>|<function=|<parameter=|<functioncall\b|<(?:\w+:)?invoke\b"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<</?SYS>>"
    r"|&lt;/?(?:think|tool_call)"
)
# The answers still answer the prompt after these, and after no other repair.
_HARMLESS = frozenset(
    {
        Flag.BOM_REMOVED,
        Flag.CONTENT_PARTS_JOINED,
        Flag.JSON_STRING_DECODED,
        Flag.LATER_TURNS_DROPPED,
        Flag.LOOKS_LIKE_STRINGIFIED_PARTS,
        Flag.NONE_PADDING_REMOVED,
        Flag.TRAILING_EMPTY_TURN_REMOVED,
    }
)


@dataclass(frozen=True)
class NativeAnswer:
    """The answer to one turn as the target would have sampled it, end token included."""

    prompt_ids: list[int]
    output_ids: list[int]
    message: Message


def same_model(claim: str | None, name: str) -> bool:
    """Whether a claimed model id, `owner/name` or `name`, is that of the target."""

    def bare(model: str) -> str:
        return re.sub(r"[\s_-]+", "-", model.rpartition("/")[2].strip()).casefold()

    return claim is not None and bare(claim) == bare(name)


class NativeTest:
    """Tests the answers of datasets against one target. `claim` is the model that one names."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        target: Target,
        settings: ResponsesSettings,
        claim: str | None,
    ) -> None:
        self._tokenizer, self._target, self._settings = tokenizer, target, settings
        self._checks = AnswerChecks(tokenizer, target, settings)
        self._is_target = same_model(claim, target.name)
        tokens = tokenizer.convert_ids_to_tokens(list(target.special_token_ids))
        special = sorted({token for token in tokens if token}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._own = f"{tokenizer.chat_template}\n" + "\n".join(tokenizer.get_added_vocab())

    def answers(self, prompt: Prompt) -> list[NativeAnswer]:
        """The answers to all turns of `prompt`, which has some in `native`.

        Raises:
            UnfitMessage: the conversation has to be asked, with the first reason for it.
        """
        entries = json.loads(prompt.native or "null")
        if not self._is_target or Flag.NOT_TARGET_NATIVE in prompt.flags:
            raise UnfitMessage(ResponseReason.OTHER_MODEL)
        if not _HARMLESS.issuperset(prompt.flags):
            raise UnfitMessage(ResponseReason.PROMPT_CHANGED)
        if not isinstance(entries, list) or len(entries) != len(prompt.turns):
            raise UnfitMessage(ResponseReason.MISSING_ANSWER)
        conversation, result = Conversation(prompt), []
        for entry in entries:
            message = self._message(entry, prompt.mode)
            if not {call.name for call in message.tool_calls} <= _offered(prompt.tools):
                # Whoever called it had seen another prompt.
                raise UnfitMessage(ResponseReason.PROMPT_CHANGED)
            found = self._answer(conversation, message)
            self._check_section(entry, found.output_ids)
            result.append(found)
            conversation.answers.append(message.as_chat())
            if message.tool_calls and conversation.turns_left:
                # The next turn was a tool's, and it is not there.
                raise UnfitMessage(ResponseReason.MISSING_ANSWER)
        return result

    def _message(self, entry: Any, mode: str) -> Message:
        if not isinstance(entry, dict):
            raise UnfitMessage(ResponseReason.MISSING_ANSWER)
        for text in _strings(entry):
            if any(found[0] not in self._own for found in _MARKUP.finditer(text)):
                raise UnfitMessage(ResponseReason.FOREIGN_MARKUP)
        thinks = mode == "thinking" and self._checks.can_think
        message = read_message(entry, thinking=thinks)
        if thinks and not (message.reasoning or "").strip():
            # Histories are rendered without their reasoning, and datasets are made of them.
            raise UnfitMessage(ResponseReason.NO_REASONING)
        if ResponseFlag.TOOL_ID_REWRITTEN in message.flags and SECTION_BEGIN in self._own:
            raise UnfitMessage(ResponseReason.FOREIGN_TOOL_ID)
        texts = (message.reasoning or "", message.content)
        if any(map(self._special.search, (*texts, *(c.arguments for c in message.tool_calls)))):
            raise UnfitMessage(ResponseReason.SPECIAL_TOKEN_IN_TEXT)
        return message

    def _answer(self, conversation: Conversation, message: Message) -> NativeAnswer:
        prompt_ids = render_next(conversation, self._tokenizer, self._target)
        closed = self._closed(conversation, message)
        opens = self._decode(prompt_ids).rstrip().endswith(THINK_OPEN)
        if opens and message.reasoning is None:
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        spoken = message.content
        if message.reasoning is not None:
            opening = "" if opens else THINK_OPEN
            spoken = f"{opening}{message.reasoning}{THINK_CLOSE}{spoken}"
        if message.tool_calls:
            output_ids = self._with_calls(prompt_ids, closed, spoken, message)
        else:
            output_ids = self._plain(prompt_ids, closed, spoken, message)
        mode = conversation.prompt.mode
        self._check_size(prompt_ids, output_ids)
        if reason := self._checks.reason(Answer(output_ids, "stop"), mode):
            raise UnfitMessage(reason)
        return NativeAnswer(prompt_ids, output_ids, message)

    def _closed(self, conversation: Conversation, message: Message) -> list[int]:
        """The conversation with the answer, as the target's template renders it, to its end token.

        Raises:
            UnfitMessage: the template refuses it, or writes more after the end token.
        """
        from jinja2 import TemplateError

        prompt = conversation.prompt
        messages = [*conversation.messages(), message.as_chat()]
        tools = json.loads(prompt.tools) if prompt.tools else None
        try:
            ids = render(
                self._tokenizer, self._target, messages, prompt.mode, tools, opens_answer=False
            )
        except TemplateError as error:
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH) from error
        ends = [at for at, id in enumerate(ids) if id in self._target.end_token_ids]
        if not ends or self._decode(ids[ends[-1] + 1 :]).strip():
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        return ids[: ends[-1] + 1]

    def _plain(
        self, prompt_ids: list[int], closed: list[int], spoken: str, message: Message
    ) -> list[int]:
        """Ids of an answer without calls.

        A template that drops the reasoning of a finished answer, as Kimi's does, cannot be asked
        for it: then the content has to end what it renders, and the text has to be read back as
        the same tokens, alone and after the prompt.
        """
        body = self._encode(spoken)
        if self._decode(body) != spoken:
            raise UnfitMessage(ResponseReason.RETOKENISATION_MISMATCH)
        output_ids = [*body, closed[-1]]
        if closed == prompt_ids + output_ids:
            return output_ids
        if message.reasoning is None or not self._decode(closed[:-1]).endswith(message.content):
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        if self._encode(self._decode(prompt_ids) + spoken) != prompt_ids + body:
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        return output_ids

    def _with_calls(
        self, prompt_ids: list[int], closed: list[int], spoken: str, message: Message
    ) -> list[int]:
        """Ids of an answer with calls, in the target's own markup: what its template writes."""
        output_ids = closed[len(prompt_ids) :]
        text = self._decode(output_ids[:-1])
        calls = text.removeprefix(spoken)
        if closed[: len(prompt_ids)] != prompt_ids or not text.startswith(spoken):
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        if any(c.name not in calls or c.arguments not in calls for c in message.tool_calls):
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)
        return output_ids

    def _check_section(self, entry: Mapping[str, Any], output_ids: list[int]) -> None:
        """A section of calls that the row holds as text has to be what the template writes."""
        text = text_of(entry.get("content"))
        start, end = text.find(SECTION_BEGIN), text.find(SECTION_END)
        if start >= 0 and text[start : end + len(SECTION_END)] not in self._decode(output_ids):
            raise UnfitMessage(ResponseReason.TEMPLATE_MISMATCH)

    def _check_size(self, prompt_ids: list[int], output_ids: list[int]) -> None:
        if len(output_ids) > self._settings.max_new_tokens:
            raise UnfitMessage(ResponseReason.TRUNCATED)
        if len(prompt_ids) + len(output_ids) > self._target.max_position:
            raise UnfitMessage(ResponseReason.PROMPT_TOO_LONG)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def _offered(tools: str | None) -> set[str]:
    """Names of the functions that a prompt offers."""
    return {tool.get("function", tool).get("name") for tool in json.loads(tools or "[]")}


def _strings(value: Any) -> list[str]:
    """All text inside a JSON value, keys left out."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    inner = value if isinstance(value, list) else []
    return [text for each in inner for text in _strings(each)]
