"""The normaliser, the key and the limits of a target, each alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.prompts import Reason
from aerie.prompts.distinct import rank
from aerie.prompts.limits import TargetLimits
from aerie.prompts.normalise import Conversation, Normalised, Rejected, normalise
from aerie.prompts.text import fold, prompt_key, repair
from tests.unit.prompts_fixtures import character_limits, word_target


def run(*turns: Any, keeps_system: bool = True, max_turns: int = 4, **more: Any) -> Normalised:
    messages = [
        {"role": turn[0], "content": turn[1]} if isinstance(turn, tuple) else turn for turn in turns
    ]
    return normalise(Conversation(messages, **more), keeps_system=keeps_system, max_turns=max_turns)


def reason(*turns: Any, **more: Any) -> Reason:
    with pytest.raises(Rejected) as no:
        run(*turns, **more)
    return no.value.reason


@pytest.mark.parametrize(
    ("text", "repaired", "flags"),
    [
        ("plain \t\n ünï 👋 \u200b", "plain \t\n ünï 👋 \u200b", set()),
        ("a\r\nb\rc", "a\nb\nc", {"newlines_normalised"}),
        ("a\0b\x1bc", "abc", {"control_chars_removed"}),
        ("\ud83d\udc4b", "👋", set()),
        ("\ud83d!", "\ufffd!", {"lone_surrogate_replaced"}),
        ("\udc4b\ud83d", "\ufffd\ufffd", {"lone_surrogate_replaced"}),
    ],
)
def test_repair(text: str, repaired: str, flags: set[str]) -> None:
    assert repair(text) == (repaired, flags)


@given(st.text(st.characters(codec=None)))
def test_repaired_text_is_utf8_and_repairing_again_changes_nothing(text: str) -> None:
    once, _ = repair(text)
    once.encode()
    assert repair(once) == (once, set())


def test_system_is_kept_first_or_dropped() -> None:
    assert run(("system", "Be brief."), ("user", "What is a heap?")).system == "Be brief."
    dropped = run(("system", "Be brief."), ("user", "Why?"), keeps_system=False)
    assert (dropped.system, dropped.flags) == (None, ("foreign_system_removed",))
    assert run(("system", None), ("user", "Why so?")).flags == ()
    assert reason(("user", "A b"), ("system", "Be brief.")) == Reason.SYSTEM_NOT_FIRST


def test_user_turns_are_merged_stripped_and_cut() -> None:
    merged = run(("user", "One."), ("human", "Two."), ("gpt", "…"), ("user", "Three."))
    assert merged.turns == ["One.\n\nTwo.", "Three."]
    stripped = run(("system", "S"), ("gpt", "Hello!"), ("user", "What is up?"))
    assert (stripped.system, stripped.turns) == ("S", ["What is up?"])
    assert stripped.flags == ("leading_assistant_stripped",)
    trailing = run(("user", "One."), ("gpt", "…"), ("user", " "))
    assert (trailing.turns, trailing.flags) == (["One."], ("trailing_empty_turn_removed",))
    cut = run(("user", "1 a"), ("gpt", ""), ("user", "2 b"), max_turns=1)
    assert (cut.turns, cut.flags) == (["1 a"], ("later_turns_dropped",))


def test_padding_and_stray_turns_are_skipped() -> None:
    padded = run(("user", "Why so?"), ("gpt", "So."), {"role": None, "content": None}, None)
    assert (padded.turns, padded.flags) == (["Why so?"], ("none_padding_removed",))
    assert run("hello", ("user", "Why so?")).flags == ("bad_turn_skipped",)
    assert reason("hello") == reason({"role": None}) == Reason.NO_MESSAGES
    assert reason({"content": "text of nobody"}) == Reason.UNKNOWN_ROLE


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]
    joined = run(("user", parts))
    assert (joined.turns, joined.flags) == (["What now?"], ("content_parts_joined",))
    image = {"type": "image_url", "image_url": {"url": "x.png"}}
    assert reason(("user", [*parts, image])) == Reason.MULTIMODAL
    assert run(("user", "Why so?"), ("assistant", [image])).turns == ["Why so?"]


@pytest.mark.parametrize("text", ["continue", "Continue, please.", "Go on!", "ok", "...", "?"])
def test_prompts_without_content(text: str) -> None:
    assert reason(("user", text)) == Reason.CONTENTLESS_PROMPT
    assert run(("user", "Tell a story."), ("gpt", "…"), ("user", text)).turns[1] == text


@pytest.mark.parametrize("text", ["-", "N/A", "null", " none ", "<prompt>"])
def test_placeholders(text: str) -> None:
    assert reason(("user", text)) == Reason.PLACEHOLDER_PROMPT


@pytest.mark.parametrize("text", ["No, why?", "👋", "1+1", "继续写这个故事", "ok computer lyrics?"])
def test_short_prompts_with_content_are_kept(text: str) -> None:
    assert run(("user", text)).turns == [text]


def test_an_empty_last_turn_is_removed_after_merging() -> None:
    merged = run(("user", "One?"), ("user", " "))
    assert (merged.turns, merged.flags) == (["One?"], ("merged_consecutive_turns",))


def test_system_texts_that_follow_one_another_become_one() -> None:
    both = run(("system", "Be brief."), ("system", "Be kind."), ("user", "Why so?"))
    assert both.system == "Be brief.\n\nBe kind."
    assert reason(("system", "A"), ("gpt", "b"), ("system", "C"), ("user", "Why so?")) == (
        Reason.SYSTEM_NOT_FIRST
    )


def test_what_was_wrong_with_a_foreign_system_text_is_not_told() -> None:
    foreign = run(("system", "A\r\nb"), ("user", "Why so?"), keeps_system=False)
    assert foreign.flags == ("foreign_system_removed",)


def test_padding_inside_of_calls() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1, "b": None}}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert run(("user", "Why so?"), turn).flags == ("none_padding_removed",)
    assert run(("user", "Why so?"), {**turn, "tool_calls": None}).flags == ()
    # In JSON a null is content: Arrow has never seen it.
    text = json.dumps([{"role": "user", "content": "Why so?"}, turn])
    found = normalise(Conversation(text), keeps_system=True, max_turns=4)
    assert found.flags == ("json_string_decoded",)


def native(*turns: Any, max_turns: int = 4, **more: Any) -> Any:
    text = run(*turns, max_turns=max_turns, native=True, **more).native
    return None if text is None else json.loads(text)


def test_answers_that_are_claimed_to_be_the_targets() -> None:
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    first = {"role": "assistant", "reasoning_content": "hm", "content": "a", "tool_calls": [call]}
    answers = [
        {"reasoning": "hm", "content": "a", "tool_calls": [call]},
        {"reasoning": None, "content": "<think>b</think>", "tool_calls": None},
    ]
    second = {"from": "gpt", "value": "<think>b</think>"}
    turns = [("system", "S"), ("user", "One?"), first, ("user", "Two?"), second]
    assert native(*turns) == answers
    assert native(*turns, max_turns=1) == answers[:1]
    assert native(*turns, ("user", "Three?"), max_turns=2) == answers
    assert run(*turns).native is None


@pytest.mark.parametrize(
    "turns",
    [
        [("user", "One?")],
        [("user", "One?"), ("gpt", "a"), ("gpt", "b")],
        [("user", "One?"), ("gpt", "a"), ("tool", "b"), ("gpt", "c")],
        [("user", "One?"), ("gpt", "a"), ("user", "Two?")],
        [("user", "One?"), ("user", "Two?"), ("gpt", "a")],
        [("gpt", "a"), ("user", "One?"), ("gpt", "b")],
    ],
)
def test_answers_that_do_not_belong_to_their_questions(turns: list[Any]) -> None:
    assert native(*turns) is None


def test_answers_to_a_system_text_that_is_gone() -> None:
    turns = [("system", "S"), ("user", "One?"), ("gpt", "a")]
    assert native(*turns, keeps_system=False) is None


_CONTENT = st.one_of(
    st.none(),
    st.text(st.characters(codec=None), max_size=12),
    st.sampled_from(["continue", "-", "[{'type': 'text'}]", "One?", " "]),
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)})),
    st.integers(),
)
_TURN = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": _CONTENT}
    ),
    st.fixed_dictionaries({"from": st.sampled_from(["human", "gpt", "x"]), "value": _CONTENT}),
    st.none(),
)


@given(st.lists(_TURN, max_size=6), st.integers(1, 3))
def test_a_prompt_is_whole_and_normalising_it_again_changes_nothing(
    messages: list[Any], max_turns: int
) -> None:
    try:
        once = normalise(Conversation(messages), keeps_system=True, max_turns=max_turns)
    except Rejected:
        return
    assert 1 <= len(once.turns) <= max_turns
    assert all(turn.strip() and turn.encode() for turn in once.turns)
    turns: list[Any] = [{"role": "system", "content": once.system}]
    for turn in once.turns:
        turns += [{"role": "user", "content": turn}, {"role": "assistant", "content": "a"}]
    again = normalise(Conversation(turns), keeps_system=True, max_turns=max_turns)
    assert (again.system, again.turns) == (once.system, once.turns)
    assert set(again.flags) <= {"looks_like_stringified_parts"}


def test_fold_ignores_what_makes_no_other_prompt() -> None:
    assert fold("\ufeffExplain TCP\u200b\n slow  START. ") == fold("explain tcp slow start.")
    assert fold("\uff45xplain \ufb01les") == fold("explain files")
    assert fold("Straße") == fold("STRASSE")
    assert fold("a b") != fold("ab")


def test_key_tells_turns_and_system_apart() -> None:
    texts: list[tuple[str | None, list[str]]] = [
        (None, ["a b"]),
        (None, ["a", "b"]),
        ("a", ["b"]),
        (None, ["a\nb", ""]),
    ]
    assert len({prompt_key(*text) for text in texts}) == len(texts)
    assert prompt_key(None, ["a"]) == prompt_key("", ["A "])
    assert len(prompt_key(None, ["a"])) == 32


def test_rank_is_pinned_and_signed() -> None:
    # Another value would reorder every selection ever made.
    assert rank(0, "chat", "0" * 32) == -1541078187293784947
    ranks = [rank(seed, name, "k") for seed in range(20) for name in ("a", "b")]
    assert len(set(ranks)) == len(ranks)
    assert min(ranks) < 0 < max(ranks)
    assert all(-(2**63) <= value < 2**63 for value in ranks)


@pytest.mark.parametrize("text", ["a <|secret|> b", "<|im_end|>", "x<|tool_call_begin|>"])
def test_special_tokens_in_text(text: str) -> None:
    limits = character_limits()
    for prompt in (Normalised(None, ["a", text]), Normalised(text, ["a"])):
        with pytest.raises(Rejected, match="special_token_in_text"):
            limits.check(prompt)
    limits.check(Normalised(None, ["a |> b <| c"]))


def test_limits_of_a_target(tmp_path: Path) -> None:
    limits = TargetLimits.of(word_target(tmp_path), 12)
    # The template adds <s> user … </s> <s> assistant: five tokens.
    limits.check(Normalised(None, ["incomprehensibilities " * 7]))
    with pytest.raises(Rejected, match="13 tokens, at most 12"):
        limits.check(Normalised(None, ["incomprehensibilities " * 8]))
    with pytest.raises(Rejected, match="special_token_in_text"):
        limits.check(Normalised(None, ["what is </s> ?"]))
