"""What a target does not take: text that it would read as control tokens, and prompts too long."""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, get_args

from jinja2 import TemplateError

from aerie.config import Mode
from aerie.contracts.prompts import Reason
from aerie.prompts.normalise import Normalised, Rejected
from aerie.target import Target, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Refused for every target: a dataset prepared with one target may be tried with another, and the
# turn markers of these two families are what scraped conversations really contain.
_MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|endoftext|>",
)


# Words with the white space before them: tokenizers cut there too.
_PIECE = re.compile(r"\s*\S{1,200}|\s+")
_MOST_KNOWN = 500_000
# A template may put white space around every byte of the tools, and may describe them twice.
_TOOLS_GROWTH = 4


class TemplateRefused(Exception):
    """The target's chat template does not take a prompt."""


class TokenCounter:
    """Counts the tokens of prompts as a target's template renders them.

    It can be sent to another process; the tokenizer is loaded where the first prompt is counted.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, int] = {}
        # The mode whose frame is longer, so that a prompt that fits in it fits in both.
        self._mode = max(get_args(Mode), key=self._frame)

    def __call__(self, prompt: Normalised) -> int:
        """The tokens of `prompt` up to where the answer begins.

        Raises:
            TemplateRefused: the template raises an error, such as for a system text.
        """
        return self._tokens(prompt, self._mode)

    def pieces(self, pieces: list[str]) -> int:
        """The tokens of all pieces together, each tokenised alone and once."""
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in self._known]
        if missing:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
                missing = list(dict.fromkeys(pieces))
            self._known.update(zip(missing, self._each(missing), strict=True))
        return sum(map(self._known.__getitem__, pieces))

    def _each(self, texts: list[str]) -> list[int]:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            encode = self._tokenizer.encode
            return [len(encode(text, add_special_tokens=False)) for text in texts]
        # Without the place of each token in the text, which takes most of the time.
        return list(map(len, backend.encode_batch_fast(texts, add_special_tokens=False)))

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in vars(self).items() if key != "_tokenizer"}
        return {**state, "_known": {}}

    @cached_property
    def _tokenizer(self) -> "PreTrainedTokenizerBase":
        return self._target.tokenizer()

    def special(self) -> list[str]:
        """The strings that the tokenizer reads as control tokens."""
        ids = list(self._target.special_token_ids)
        return list(self._tokenizer.convert_ids_to_tokens(ids))

    def _frame(self, mode: str) -> int:
        return self._tokens(Normalised(None, ["a"]), mode)

    def _tokens(self, prompt: Normalised, mode: str) -> int:
        tools = json.loads(prompt.tools) if prompt.tools else None
        try:
            return len(render(self._tokenizer, self._target, _as_messages(prompt), mode, tools))
        except TemplateError as error:
            raise TemplateRefused(str(error)) from error


class Counter(Protocol):
    """Counts tokens: of a prompt as the target's template renders it, and of pieces of text."""

    def __call__(self, prompt: Normalised) -> int: ...
    def pieces(self, pieces: list[str]) -> int: ...


class TargetLimits:
    """Judges prompts by what a target takes.

    `special` are the strings that its tokenizer reads as control tokens.
    """

    def __init__(self, max_tokens: int, special: Iterable[str], count: Counter) -> None:
        self.max_tokens = max_tokens
        strings = sorted({*_MARKERS, *filter(None, special)}, key=lambda text: (-len(text), text))
        self._special = re.compile("|".join(map(re.escape, strings)))
        self._starts = tuple(sorted({string[0] for string in strings}))
        self._count = count
        self._frame = count(Normalised(None, ["a"]))
        self._system_frame = self._with_system()

    def _with_system(self) -> int | None:
        try:
            return self._count(Normalised("a", ["a"]))
        except TemplateRefused:
            return None

    @classmethod
    def of(cls, target: Target, max_tokens: int) -> "TargetLimits":
        """The limits of `target`, whose tokenizer is loaded here."""
        counter = TokenCounter(target)
        return cls(max_tokens, counter.special(), counter)

    def check(self, prompt: Normalised) -> None:
        """Pass a prompt that the target takes.

        Raises:
            Rejected: it holds the text of a special token, has more than `max_tokens` tokens, or
                the target's template refuses it.
        """
        if prompt.system and self._system_frame is None:
            raise Rejected(Reason.REFUSED_BY_TEMPLATE, "the template takes no system text")
        size = (self._system_frame if prompt.system else self._frame) or 0
        texts = [(prompt.system, 1), *((turn, 1) for turn in prompt.turns)]
        for text, growth in (*texts, (prompt.tools, _TOOLS_GROWTH)):
            if not text:
                continue
            # Most texts have no character with which a special token begins.
            if any(start in text for start in self._starts) and (
                found := self._special.search(text)
            ):
                raise Rejected(Reason.SPECIAL_TOKEN_IN_TEXT, f"holds {found[0]}")
            size += growth * (len(text) if text.isascii() else len(text.encode("utf-8")))
        # A token is a byte at least, so most prompts need not be tokenised to know that they fit.
        if size <= self.max_tokens or self._surely_fits(prompt, size):
            return
        try:
            tokens = self._count(prompt)
        except TemplateRefused as error:
            raise Rejected(Reason.REFUSED_BY_TEMPLATE, str(error)) from error
        if tokens > self.max_tokens:
            raise Rejected(
                Reason.PROMPT_TOO_LONG, f"{tokens:,} tokens, at most {self.max_tokens:,}"
            )

    def _surely_fits(self, prompt: Normalised, size: int) -> bool:
        """Whether a prompt fits, word by word: most words were tokenised before.

        `size` counts a token for every byte; each turn that is tokenised lowers it.
        """
        for turn in prompt.turns:
            size += self._count.pieces(_PIECE.findall(turn)) - len(turn.encode("utf-8"))
            if size <= self.max_tokens:
                return True
        return False


def _as_messages(prompt: Normalised) -> list[dict[str, str]]:
    """All user turns as one: some templates refuse turns that do not alternate with answers."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": "\n\n".join(prompt.turns)}]
