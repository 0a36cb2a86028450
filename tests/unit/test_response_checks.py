"""Which answers are rejected, and when a part is."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aerie.config import ResponsesSettings
from aerie.contracts.responses import ResponseReason
from aerie.engines.base import Answer
from aerie.errors import GateError
from aerie.gates.supervision import check_supervision
from aerie.responses.checks import AnswerChecks, compression, distinct_share
from aerie.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END = 2
SETTINGS = ResponsesSettings()
PROSE = "The draft proposes tokens and the target verifies them in one pass of the model."


@pytest.fixture(scope="module")
def tokenizer(tiny_target: Target) -> "PreTrainedTokenizerBase":
    return tiny_target.tokenizer()


@pytest.fixture
def checks(tokenizer: "PreTrainedTokenizerBase", tiny_target: Target) -> AnswerChecks:
    return AnswerChecks(tokenizer, tiny_target, SETTINGS)


def said(tokenizer: "PreTrainedTokenizerBase", text: str, reason: str = "stop") -> Answer:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Answer([*ids, END] if reason == "stop" else ids, reason)


def test_good_answer(checks: AnswerChecks, tokenizer: "PreTrainedTokenizerBase") -> None:
    answer = said(tokenizer, PROSE)
    assert checks.reason(answer, "instant") is None
    # A target that has no thinking token does not think.
    assert checks.reason(answer, "thinking") is None
    assert checks.text(answer.output_ids) == PROSE


def test_truncated(tokenizer: "PreTrainedTokenizerBase", tiny_target: Target) -> None:
    answer = said(tokenizer, PROSE, "length")
    loop = said(tokenizer, "again and " * 100, "length")
    drop = AnswerChecks(tokenizer, tiny_target, SETTINGS)
    keep = AnswerChecks(tokenizer, tiny_target, ResponsesSettings(keep_truncated=True))
    assert drop.reason(answer, "instant") is ResponseReason.TRUNCATED
    assert keep.reason(answer, "instant") is None
    assert keep.reason(loop, "instant") is ResponseReason.REPETITIVE


def test_cut_inside_a_character_is_no_mismatch(
    tokenizer: "PreTrainedTokenizerBase", tiny_target: Target
) -> None:
    keep = AnswerChecks(tokenizer, tiny_target, ResponsesSettings(keep_truncated=True))
    whole = said(tokenizer, PROSE + " 鷲").output_ids[:-1]
    assert keep.reason(Answer(whole[:-1], "length"), "instant") is None
    letters = [tokenizer.get_vocab()[letter] for letter in "the"]
    early = Answer(letters + whole, "length")
    assert keep.reason(early, "instant") is ResponseReason.RETOKENISATION_MISMATCH


def test_no_end_token(checks: AnswerChecks, tokenizer: "PreTrainedTokenizerBase") -> None:
    ids = said(tokenizer, PROSE).output_ids
    assert checks.reason(Answer(ids[:-1], "stop"), "instant") is ResponseReason.NO_END_TOKEN
    assert checks.reason(Answer([], "stop"), "instant") is ResponseReason.EMPTY_MASK


def test_missing_think_close(tiny_target: Target) -> None:
    tokenizer = tiny_target.tokenizer()
    tokenizer.add_tokens(["</think>"])
    checks = AnswerChecks(tokenizer, replace(tiny_target, vocab_size=513), SETTINGS)
    silent, thought = (said(tokenizer, text) for text in (PROSE, f"Well.</think>{PROSE}"))
    assert checks.reason(silent, "thinking") is ResponseReason.MISSING_THINK_CLOSE
    assert checks.reason(silent, "instant") is None
    assert checks.reason(thought, "thinking") is None
    only_thought = said(tokenizer, "Well.</think>\n")
    assert checks.reason(only_thought, "thinking") is ResponseReason.EMPTY_ANSWER


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_empty(checks: AnswerChecks, tokenizer: "PreTrainedTokenizerBase", text: str) -> None:
    assert checks.reason(said(tokenizer, text), "instant") is ResponseReason.EMPTY_ANSWER


def test_repetitive(checks: AnswerChecks, tokenizer: "PreTrainedTokenizerBase") -> None:
    loop = said(tokenizer, "again and " * 100)
    assert checks.reason(loop, "instant") is ResponseReason.REPETITIVE
    assert checks.reason(said(tokenizer, "so so so so"), "instant") is None


def test_retokenisation(checks: AnswerChecks, tokenizer: "PreTrainedTokenizerBase") -> None:
    letters = [tokenizer.get_vocab()[letter] for letter in "the"]
    assert tokenizer.encode("the", add_special_tokens=False) != letters
    answer = Answer([*letters, END], "stop")
    assert checks.reason(answer, "instant") is ResponseReason.RETOKENISATION_MISMATCH


@pytest.mark.parametrize("bad", [512, -1, 10**6])
def test_out_of_range(checks: AnswerChecks, bad: int) -> None:
    answer = Answer([5, bad, END], "stop")
    assert checks.reason(answer, "instant") is ResponseReason.TOKEN_OUT_OF_RANGE
    assert checks.text(answer.output_ids) == ""


def test_measures() -> None:
    assert compression(PROSE) < 2 < 20 < compression("x" * 1000)
    assert distinct_share([1, 2, 3]) == 1
    assert distinct_share([1, 2, 3, 4, 5]) == 1
    assert distinct_share([1] * 103) == 0.01


def test_gate_passes_within_limits() -> None:
    check_supervision("d part 0", 50, 50, 3, {"truncated": 1}, SETTINGS)
    check_supervision("d part 0", 0, 0, 0, {}, SETTINGS)


def test_gate_names_reasons_and_cause() -> None:
    rejects = {"truncated": 7, "repetitive": 1}
    with pytest.raises(GateError) as error:
        check_supervision("chat part 3", 50, 50, 2, rejects, SETTINGS)
    message = str(error.value)
    for piece in ("gate: supervision: chat part 3", "80.0%", "truncated 7", "at most 50.0%"):
        assert piece in message
    assert "responses.max_new_tokens" in message


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "cause"),
    [
        (0, 0, "no answer was accepted"),
        (1000, 10, "answers are short"),
        (1, 1000, "adapter reads the right column"),
    ],
)
def test_gate_band(prompt_tokens: int, output_tokens: int, cause: str) -> None:
    with pytest.raises(GateError, match=cause) as error:
        check_supervision("d part 0", prompt_tokens, output_tokens, 5, {}, SETTINGS)
    assert error.value.gate == "supervision"


def test_thinking_is_as_the_mode_asks(tiny_target: Target) -> None:
    tokenizer = tiny_target.tokenizer()
    tokenizer.add_tokens(["<think>", "</think>"])
    target = replace(tiny_target, vocab_size=514)
    free, asked = (
        AnswerChecks(tokenizer, replace(target, thinking_variable=name), SETTINGS)
        for name in (None, "thinking")
    )
    thought = said(tokenizer, f"Well.</think>{PROSE}")
    opened = said(tokenizer, f"<think>Well.</think>{PROSE}")
    twice = said(tokenizer, f"Well.</think>{PROSE}</think>{PROSE}")
    late = said(tokenizer, f"Well.<think></think>{PROSE}")
    assert asked.reason(opened, "thinking") is None
    for bad in (twice, late):
        assert asked.reason(bad, "thinking") is ResponseReason.MALFORMED_THINK
    for bad in (thought, opened, twice):
        assert asked.reason(bad, "instant") is ResponseReason.THINK_IN_INSTANT_MODE
        # Where no variable of the template decides it, the mode says nothing about the answer.
        assert free.reason(bad, "instant") is None
    assert asked.said(thought.output_ids) == PROSE
    assert asked.text(thought.output_ids) == f"Well.</think>{PROSE}"


def test_every_reason_of_the_checks_has_a_likely_cause() -> None:
    """The gate names a cause for whatever reason is the most frequent."""
    of_datasets_and_messages = list(ResponseReason)[
        list(ResponseReason).index(ResponseReason.REQUEST_FAILED) :
    ]
    for reason in ResponseReason:
        if reason not in of_datasets_and_messages:
            with pytest.raises(GateError, match="likely cause: "):
                check_supervision("chat part 3", 50, 50, 0, {str(reason): 1}, SETTINGS)
