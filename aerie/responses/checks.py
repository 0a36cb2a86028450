"""Which answers are not trained on, and why."""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerie.config import ResponsesSettings
from aerie.contracts.responses import ResponseReason
from aerie.engines.base import Answer
from aerie.responses.message import THINK_CLOSE, THINK_OPEN, think_reason
from aerie.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NGRAM = 4
# Shorter answers repeat and compress by chance.
_LEAST_TOKENS = 32
# A cut may fall inside a character or between tokens that the next one would have kept apart.
_CUT_TOKENS = 4


@dataclass(frozen=True)
class TokenRules:
    """What the ids of an answer are judged by. The think tags are None where a target has none."""

    vocab_size: int
    end_token_ids: tuple[int, ...]
    think_open: int | None
    think_close: int | None

    def reason(
        self, output_ids: list[int], *, thinks: bool | None, cut: bool = False
    ) -> ResponseReason | None:
        """The first reason not to train on an answer of these ids, end token included, or None.

        `thinks` is whether the answer should hold reasoning, None if either is right. `cut` is set
        for one that ended by length.
        """
        if not all(0 <= id < self.vocab_size for id in output_ids):
            return ResponseReason.TOKEN_OUT_OF_RANGE
        if not output_ids:
            return ResponseReason.EMPTY_MASK
        if not cut and output_ids[-1] not in self.end_token_ids:
            return ResponseReason.NO_END_TOKEN
        if thinks is None or self.think_close is None:
            return None
        # A target may open its reasoning itself, if its template does not.
        opened = 0 if self.think_open is None else output_ids[1:].count(self.think_open)
        opened += not thinks and output_ids[0] == self.think_open
        found = think_reason(opened, output_ids.count(self.think_close), thinks=thinks)
        return None if cut and found is ResponseReason.MISSING_THINK_CLOSE else found


class AnswerChecks:
    """Judges answers of one target."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", target: Target, settings: ResponsesSettings
    ) -> None:
        self._tokenizer, self._target, self._settings = tokenizer, target, settings
        vocabulary = tokenizer.get_vocab()
        self._rules = TokenRules(
            target.vocab_size,
            target.end_token_ids,
            vocabulary.get(THINK_OPEN),
            vocabulary.get(THINK_CLOSE),
        )

    @property
    def can_think(self) -> bool:
        """Whether the target has a token that ends its reasoning."""
        return self._rules.think_close is not None

    def text(self, output_ids: list[int]) -> str:
        """The answer for people, without its end token. Empty if an id is not of the target."""
        return self._decode(self._body(output_ids)) if self._in_range(output_ids) else ""

    def said(self, output_ids: list[int]) -> str:
        """The answer in the history of later turns: templates put no reasoning there."""
        return self._after_thinking(self.text(output_ids))

    def reason(self, answer: Answer, mode: str) -> ResponseReason | None:
        """The first reason not to train on `answer`, or None."""
        ids = answer.output_ids
        cut = answer.finish_reason == "length"
        if cut and not self._settings.keep_truncated and self._in_range(ids):
            return ResponseReason.TRUNCATED
        found = self._rules.reason(ids, thinks=self._thinks(mode), cut=cut)
        return found or self._content_reason(self._body(ids), _CUT_TOKENS if cut else 0)

    def _thinks(self, mode: str) -> bool | None:
        """Whether an answer of this mode holds reasoning; None if the mode does not decide it."""
        if mode == "thinking":
            return True
        return None if self._target.thinking_variable is None else False

    def _after_thinking(self, text: str) -> str:
        return text.rpartition(THINK_CLOSE)[2] if self.can_think else text

    def _content_reason(self, body: list[int], cut: int) -> ResponseReason | None:
        text = self._decode(body)
        # Reasoning that leads to no answer is no answer.
        if not self._after_thinking(text).strip():
            return ResponseReason.EMPTY_ANSWER
        if len(body) >= _LEAST_TOKENS and self._repeats(text, body):
            return ResponseReason.REPETITIVE
        sure = max(len(body) - cut, 0)
        again = self._tokenizer.encode(text, add_special_tokens=False)
        if again[:sure] != body[:sure] or (not cut and len(again) != sure):
            return ResponseReason.RETOKENISATION_MISMATCH
        return None

    def _repeats(self, text: str, body: list[int]) -> bool:
        return (
            compression(text) > self._settings.max_compression
            or distinct_share(body) < self._settings.min_distinct
        )

    def _in_range(self, ids: list[int]) -> bool:
        return all(0 <= id < self._target.vocab_size for id in ids)

    def _body(self, output_ids: list[int]) -> list[int]:
        ended = bool(output_ids) and output_ids[-1] in self._target.end_token_ids
        return output_ids[:-1] if ended else output_ids

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)


def compression(text: str) -> float:
    """How many times smaller zlib makes `text`: prose about 2, loops far more."""
    raw = text.encode("utf-8", "surrogatepass")
    return len(raw) / len(zlib.compress(raw))


def distinct_share(ids: list[int]) -> float:
    """Share of the 4-grams of `ids` that are distinct; 1 where there are none."""
    grams = [tuple(ids[start : start + _NGRAM]) for start in range(len(ids) - _NGRAM + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
