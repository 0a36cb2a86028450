"""Which answers are not trained on, and why."""

import zlib
from typing import TYPE_CHECKING

from aerie.config import ResponsesSettings
from aerie.contracts.responses import ResponseReason
from aerie.engines.base import Answer
from aerie.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK_CLOSE = "</think>"
_NGRAM = 4
# Shorter answers repeat and compress by chance.
_LEAST_TOKENS = 32
# A cut may fall inside a character or between tokens that the next one would have kept apart.
_CUT_TOKENS = 4


class AnswerChecks:
    """Judges answers of one target."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", target: Target, settings: ResponsesSettings
    ) -> None:
        self._tokenizer, self._target, self._settings = tokenizer, target, settings
        # A target without the token does not think, whatever the mode asks for.
        self._think_close = tokenizer.get_vocab().get(THINK_CLOSE)

    def text(self, output_ids: list[int]) -> str:
        """The answer for people and for the history of later turns, without its end token.

        Empty if an id is not of the target.
        """
        return self._decode(self._body(output_ids)) if self._in_range(output_ids) else ""

    def reason(self, answer: Answer, mode: str) -> ResponseReason | None:
        """The first reason not to train on `answer`, or None."""
        ids = answer.output_ids
        truncated = answer.finish_reason == "length"
        if not self._in_range(ids):
            return ResponseReason.TOKEN_OUT_OF_RANGE
        if truncated and not self._settings.keep_truncated:
            return ResponseReason.TRUNCATED
        if not truncated and not (ids and ids[-1] in self._target.end_token_ids):
            return ResponseReason.NO_END_TOKEN
        thinks = mode == "thinking" and self._think_close is not None
        if thinks and not truncated and self._think_close not in ids:
            return ResponseReason.MISSING_THINK_CLOSE
        return self._content_reason(self._body(ids), _CUT_TOKENS if truncated else 0)

    def _content_reason(self, body: list[int], cut: int) -> ResponseReason | None:
        text = self._decode(body)
        # Reasoning that leads to no answer is no answer.
        if not text.rpartition(THINK_CLOSE)[2].strip():
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
