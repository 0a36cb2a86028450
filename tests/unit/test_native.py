"""Answers that a dataset claims to have: tested row by row, used whole, never asked for."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from aerie.config import ROOT, PathSource, ResponsesSettings, TargetSettings
from aerie.contracts.prompts import Flag, Prompt, write_prompts
from aerie.contracts.responses import AnswerSource, read_responses
from aerie.contracts.responses import ResponseReason as Reason
from aerie.contracts.sidecar import damage, write_sidecar
from aerie.prompts.adapters import adapter
from aerie.prompts.normalise import normalise
from aerie.responses import run as phase
from aerie.responses.checks import AnswerChecks
from aerie.responses.message import UnfitMessage
from aerie.responses.native import NativeTest, same_model
from aerie.responses.requests import native_digest
from aerie.responses.run import Job, answer
from aerie.target import Target, render
from aerie.target_build import build_target
from tests.conftest import TINY_SENTENCES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KIMI_TEMPLATE = Path(
    os.environ.get(
        "AERIE_KIMI_TEMPLATE", ROOT.parent / "shared/fixtures/kimi_k25_chat_template.jinja"
    )
)
# The same manners as Kimi's in other words: reasoning is opened by the prompt and dropped from the
# history, calls are written as lines.
OWN_TEMPLATE = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'assistant' %}"
    "{% if m.tool_calls and thinking %}<think>{{ m.reasoning_content }}</think>"
    "{% else %}<think></think>{% endif %}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}\n"
    "CALL {{ c.function.name }} {{ c.function.arguments }}{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|><think>"
    "{% if not thinking %}</think>{% endif %}{% endif %}"
)
SPECIAL = ["<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
SECTIONS = [
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
]
ADAPTER, CLAIM = "lightseekorg/kimi-mtp-dataset", "moonshotai/Kimi-K2.5"
SETTINGS = ResponsesSettings(max_new_tokens=200)


def thinking_tokenizer(template: str, special: list[str]) -> "PreTrainedTokenizerBase":
    """A small byte-level BPE with Kimi's control tokens, think tags among them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*special, "<think>", "</think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TINY_SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        additional_special_tokens=special[1:],
        chat_template=template,
    )


class Bench:
    """A tokenizer and a target that go together, and the test of claims about it."""

    def __init__(self, target: Target, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.target, self.tokenizer = target, tokenizer
        self.test = NativeTest(tokenizer, target, SETTINGS, CLAIM)

    def render(self, messages: list[Any], mode: str, **options: Any) -> list[int]:
        """As the build renders a prompt that offers `TOOLS`."""
        return render(self.tokenizer, self.target, messages, mode, json.loads(TOOLS), **options)

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))

    def reason(self, prompt: Prompt) -> Reason | None:
        try:
            self.test.answers(prompt)
        except UnfitMessage as no:
            return no.reason
        return None


def make_bench(tiny: Target, template: str, special: list[str]) -> Bench:
    tokenizer = thinking_tokenizer(template, special)
    ids = [tokenizer.get_vocab()[token] for token in special]
    target = replace(
        tiny,
        name="Kimi-K2.5",
        vocab_size=len(tokenizer),
        end_token_ids=(ids[0],),
        special_token_ids=tuple(sorted(ids)),
        thinking_variable="thinking",
    )
    return Bench(target, tokenizer)


@pytest.fixture(scope="module", params=["own", "kimi"])
def bench(request: pytest.FixtureRequest, tiny_target: Target) -> Bench:
    """A target that thinks, with a template of this file and with Kimi's."""
    if request.param == "own":
        return make_bench(tiny_target, OWN_TEMPLATE, SPECIAL)
    if not KIMI_TEMPLATE.is_file():
        pytest.skip(f"{KIMI_TEMPLATE} is not there; AERIE_KIMI_TEMPLATE names Kimi's template")
    return make_bench(tiny_target, KIMI_TEMPLATE.read_text(encoding="utf-8"), SPECIAL + SECTIONS)


@pytest.fixture(scope="module")
def plain(tiny_target: Target) -> Bench:
    """A target that does not think: ChatML, whose prompt ends with a line break."""
    return Bench(replace(tiny_target, name="kimi-k2.5"), tiny_target.tokenizer())


def said(content: Any, reasoning: Any = None, calls: Any = None) -> dict[str, Any]:
    return {"reasoning": reasoning, "content": content, "tool_calls": calls}


def call(id: str, arguments: str = '{"p": "a tree"}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "ls", "arguments": arguments}}


TOOLS = json.dumps([{"type": "function", "function": {"name": "ls", "parameters": {}}}])


def prompt(*answers: Any, mode: str = "thinking", **changes: Any) -> Prompt:
    turns = ["What is an aerie?", "And why?", "Write a function."][: len(answers)]
    native = json.dumps(answers)
    made = Prompt("d-1", "d", "1", 1, mode, "Be brief.", turns, tools=TOOLS, native=native)
    return replace(made, **changes)


ANSWER = "An eagle builds its nest, called an aerie, on a cliff."


def test_thinking_answer(bench: Bench) -> None:
    for entry in (said(ANSWER, "A nest?"), said(f"A nest?</think>{ANSWER}")):
        (found,) = bench.test.answers(prompt(entry))
        asked = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is an aerie?"},
        ]
        assert found.prompt_ids == bench.render(asked, "thinking")
        text = bench.decode(found.output_ids)
        assert text == f"A nest?</think>{ANSWER}<|im_end|>"
        # As tokens, the tags are one each: a tag in letters would be another answer.
        assert found.output_ids.count(bench.tokenizer.get_vocab()["</think>"]) == 1


def test_instant_answer_is_what_the_template_renders(bench: Bench) -> None:
    (found,) = bench.test.answers(prompt(said(f"{ANSWER}<|im_end|>"), mode="instant"))
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is an aerie?"},
        {"role": "assistant", "content": ANSWER},
    ]
    whole = bench.render(asked, "instant", opens_answer=False)
    assert found.prompt_ids + found.output_ids == whole


def test_a_target_that_does_not_think(plain: Bench) -> None:
    for mode in ("instant", "thinking"):
        (found,) = plain.test.answers(prompt(said(ANSWER), mode=mode))
        assert plain.decode(found.output_ids) == f"{ANSWER}<|im_end|>"
        tags = prompt(said(ANSWER, "A nest?"), mode=mode)
        assert plain.reason(tags) == Reason.THINK_IN_INSTANT_MODE
    # Its template knows no calls: they would be lost.
    calls = prompt(said("Let me look.", None, [call("functions.ls:0")]))
    assert plain.reason(calls) == Reason.TEMPLATE_MISMATCH


def test_tokens_do_not_reach_across_the_end_of_the_prompt(tiny_target: Target) -> None:
    tokenizer = tiny_target.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ 'an e' if m.role == 'assistant' else m.role }}"
        "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>an e"
        "{% endif %}"
    )
    bench = Bench(replace(tiny_target, name="Kimi-K2.5"), tokenizer)
    assert bench.reason(prompt(said("7 is odd"))) is None
    assert bench.reason(prompt(said("agle"))) == Reason.TEMPLATE_MISMATCH


def test_later_turns_see_the_earlier_answers_without_their_reasoning(bench: Bench) -> None:
    entries = [said(ANSWER, "One."), said("It depends.", "Two."), said("def nest(): ...", "Three.")]
    found = bench.test.answers(prompt(*entries))
    assert len(found) == 3
    history = bench.decode(found[2].prompt_ids)
    assert f"<think></think>{ANSWER}<|im_end|>" in history
    assert "<think></think>It depends.<|im_end|>" in history
    assert "One." not in history and "Two." not in history


def test_calls_are_in_the_targets_own_markup(bench: Bench) -> None:
    for mode, reasoning in (("thinking", "I have to look."), ("instant", None)):
        entry = said("Looking.", reasoning, [call("functions.ls:0"), call("functions.ls:1")])
        (found,) = bench.test.answers(prompt(entry, mode=mode))
        text = bench.decode(found.output_ids)
        asked = bench.decode(found.prompt_ids)
        assert asked.endswith("<think>" if reasoning else "<think></think>")
        assert text.startswith(f"{reasoning}</think>Looking." if reasoning else "Looking.")
        assert text.count('{"p": "a tree"}') == 2
        assert text.endswith("<|im_end|>")


def test_calls_in_kimis_text(bench: Bench) -> None:
    one = '<|tool_call_begin|>functions.ls:0<|tool_call_argument_begin|>{"p": 1}<|tool_call_end|>'
    raw = f"<|tool_calls_section_begin|>{one}<|tool_calls_section_end|>"
    spaced = raw.replace("<|tool_call_end|>", "<|tool_call_end|>\n")
    ids = prompt(said(None, "Hm.", [call("call_1")]))
    if SECTIONS[0] not in bench.tokenizer.get_vocab():
        assert bench.reason(prompt(said(raw, "Hm."))) == Reason.FOREIGN_MARKUP
        return
    (found,) = bench.test.answers(prompt(said(f"Hm.</think>{raw}")))
    assert bench.decode(found.output_ids) == f"Hm.</think>{raw}<|im_end|>"
    assert bench.reason(prompt(said(spaced, "Hm."))) == Reason.TEMPLATE_MISMATCH
    assert bench.reason(ids) == Reason.FOREIGN_TOOL_ID


FAILS: dict[str, tuple[Any, Reason]] = {
    "no reasoning": (said(ANSWER), Reason.MISSING_THINK_CLOSE),
    "empty reasoning": (said(f"<think></think>{ANSWER}"), Reason.NO_REASONING),
    "blank reasoning": (said(ANSWER, " \n"), Reason.NO_REASONING),
    "never closed": (said(f"<think>Hm. {ANSWER}"), Reason.MISSING_THINK_CLOSE),
    "opened twice": (said(f"<think>Hm.<think></think>{ANSWER}"), Reason.MALFORMED_THINK),
    "closed twice": (said(f"Hm.</think>{ANSWER}</think>"), Reason.MALFORMED_THINK),
    "thinking only": (said(None, "Hm."), Reason.EMPTY_ANSWER),
    "Hermes": (said('<tool_call>{"name": "ls"}</tool_call>', "Hm."), Reason.FOREIGN_MARKUP),
    "XML": (said("<function=ls><parameter=p>.</parameter>", "Hm."), Reason.FOREIGN_MARKUP),
    "OpenThoughts": (said(f"<|begin_of_thought|>{ANSWER}", "Hm."), Reason.FOREIGN_MARKUP),
    "DeepSeek": (said(f"{ANSWER}<｜end▁of▁sentence｜>", "Hm."), Reason.FOREIGN_MARKUP),
    "Mistral": (said('[TOOL_CALLS][{"name": "ls"}]', "Hm."), Reason.FOREIGN_MARKUP),
    "ChatML": (said(f"{ANSWER}<|im_start|>user", "Hm."), Reason.FOREIGN_MARKUP),
    "in the reasoning": (said(ANSWER, "<tool_call>"), Reason.FOREIGN_MARKUP),
    "escaped": (said(f"&lt;think&gt;{ANSWER}", "Hm."), Reason.FOREIGN_MARKUP),
    "in the arguments": (
        said(None, "Hm.", [call("functions.ls:0", '{"p": "<tool_call>"}')]),
        Reason.FOREIGN_MARKUP,
    ),
    "a turn of the target's": (said("A<|im_user|>B", "Hm."), Reason.SPECIAL_TOKEN_IN_TEXT),
    "lost bytes": (said("caf\ufffd", "Hm."), Reason.RETOKENISATION_MISMATCH),
    "a loop": (said("again and " * 15, "Hm."), Reason.REPETITIVE),
    "too long": (said(" ".join(map(str, range(300))), "Hm."), Reason.TRUNCATED),
    "null": (None, Reason.MISSING_ANSWER),
    "arguments": (said(None, "Hm.", [call("functions.ls:0", "{")]), Reason.BAD_TOOL_ARGUMENTS),
}


@pytest.mark.parametrize("name", FAILS)
def test_fails(name: str, bench: Bench) -> None:
    entry, reason = FAILS[name]
    assert bench.reason(prompt(entry)) == reason
    # One bad turn spoils the conversation, since later ones rest on it.
    good = said(ANSWER, "Hm.")
    assert bench.reason(prompt(good, entry)) == bench.reason(prompt(entry, good)) == reason


def test_mode_has_to_fit(bench: Bench) -> None:
    thought = prompt(said(ANSWER, "Hm."), mode="instant")
    assert bench.reason(thought) == Reason.THINK_IN_INSTANT_MODE
    assert bench.reason(prompt(said(ANSWER), mode="instant")) is None


def test_turns_have_to_be_there(bench: Bench) -> None:
    good = said(ANSWER, "Hm.")
    two = ["Hi there", "And then?"]
    assert bench.reason(prompt(good, turns=two)) == Reason.MISSING_ANSWER
    assert bench.reason(prompt(good, native="null")) == Reason.MISSING_ANSWER
    tool = prompt(said("", "Hm.", [call("functions.ls:0")]), good)
    assert bench.reason(tool) == Reason.MISSING_ANSWER


def test_the_prompt_has_to_be_the_one_that_was_answered(bench: Bench) -> None:
    good = prompt(said(ANSWER, "Hm."))
    changed = (Flag.FOREIGN_SYSTEM_REMOVED, Flag.CHUNK_CONTINUATION, Flag.MERGED_CONSECUTIVE_TURNS)
    for flag in changed:
        assert bench.reason(replace(good, flags=(flag,))) == Reason.PROMPT_CHANGED
    assert bench.reason(replace(good, flags=(Flag.NOT_TARGET_NATIVE,))) == Reason.OTHER_MODEL
    assert bench.reason(replace(good, flags=(Flag.LATER_TURNS_DROPPED,))) is None


def test_a_call_needs_a_tool_that_was_offered(bench: Bench) -> None:
    calls = prompt(said("", "Hm.", [call("functions.ls:0")]))
    assert bench.reason(calls) is None
    assert bench.reason(replace(calls, tools=None)) == Reason.PROMPT_CHANGED
    bare = json.dumps([{"name": "cat"}])
    assert bench.reason(replace(calls, tools=bare)) == Reason.PROMPT_CHANGED


def test_rows_of_the_dataset_that_claims_kimi(bench: Bench) -> None:
    reader = adapter(ADAPTER)
    chats = [
        [("human", "What is an aerie?"), ("gpt", f"<think>A nest.</think>{ANSWER}")],
        [("human", "What is an aerie?"), ("gpt", f"<tool_call>{ANSWER}</tool_call>")],
        [("human", "Hi there"), ("gpt", "<think>Hm.</think>Hi."), ("human", "And then?")],
    ]
    reasons = []
    for chat in chats:
        turns = [{"from": role, "value": text} for role, text in chat]
        row = dict.fromkeys(reader.wanted()) | {"conversations": turns}
        found = normalise(reader.find(row), keeps_system=reader.keeps_system, max_turns=4)
        made = Prompt(
            "d-1", "d", "1", 1, "thinking", found.system, found.turns, native=found.native
        )
        reasons.append(bench.reason(made) if made.native else Reason.MISSING_ANSWER)
    assert reasons == [None, Reason.FOREIGN_MARKUP, Reason.MISSING_ANSWER]


def test_the_context_has_to_hold_it(bench: Bench) -> None:
    small = replace(bench.target, max_position=len(ANSWER) // 2)
    test = NativeTest(bench.tokenizer, small, SETTINGS, CLAIM)
    with pytest.raises(UnfitMessage, match=Reason.PROMPT_TOO_LONG):
        test.answers(prompt(said(ANSWER, "Hm.")))


@pytest.mark.parametrize("claim", [None, "moonshotai/Kimi-K2", "moonshotai/Kimi-K2-Thinking", ""])
def test_another_model_is_not_the_target(claim: str | None, bench: Bench) -> None:
    test = NativeTest(bench.tokenizer, bench.target, SETTINGS, claim)
    with pytest.raises(UnfitMessage, match=Reason.OTHER_MODEL):
        test.answers(prompt(said(ANSWER, "Hm.")))


def test_names_of_models() -> None:
    assert same_model("moonshotai/Kimi-K2.5", "Kimi-K2.5")
    assert same_model("moonshotai/Kimi-K2.5", "moonshotai/kimi_k2.5")
    assert not same_model("moonshotai/Kimi-K2.5", "Kimi-K2")
    assert not same_model(None, "Kimi-K2.5")


def test_digest_names_the_answer(bench: Bench) -> None:
    base = native_digest(bench.target, "thinking", [1, 2], [3, 4])
    others = [
        native_digest(bench.target, "instant", [1, 2], [3, 4]),
        native_digest(bench.target, "thinking", [1], [2, 3, 4]),
        native_digest(bench.target, "thinking", [1, 2], [3, 5]),
        native_digest(replace(bench.target, revision="x"), "thinking", [1, 2], [3, 4]),
    ]
    assert len({base, *others}) == 5


some_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["</think>", "<think>", "<|im_end|>", "\n\n", "<|im_user|>x", "<tool_call>", " an eagle"]
)


@settings(deadline=None)
@given(parts=st.lists(some_text, min_size=1, max_size=4), reasoning=st.none() | some_text)
def test_what_passes_is_what_the_target_could_have_said(
    bench: Bench, parts: list[str], reasoning: str | None
) -> None:
    mode = "instant" if reasoning is None else "thinking"
    asked = prompt(said("".join(parts), reasoning), mode=mode)
    try:
        (found,) = bench.test.answers(asked)
    except UnfitMessage as no:
        event(no.reason)
        return
    event("passed")
    tokenizer, ids = bench.tokenizer, found.output_ids
    special = set(bench.target.special_token_ids)
    assert ids[-1] in bench.target.end_token_ids and not special & set(ids[:-1])
    text = bench.decode(ids[:-1])
    assert tokenizer.encode(text) == ids[:-1]
    whole = bench.decode(found.prompt_ids + ids)
    assert tokenizer.encode(whole) == found.prompt_ids + ids
    assert whole.count("</think>") == whole.count("<think>") == 1
    assert AnswerChecks(tokenizer, bench.target, SETTINGS).said(ids) == found.message.content


@pytest.fixture(scope="module")
def kimi_named(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The tiny target under the name that a dataset claims."""
    claim = adapter(ADAPTER).native
    assert claim is not None
    settings = TargetSettings(
        name=claim.rpartition("/")[2], source=PathSource(path=str(tiny_checkpoint)), dtype="float32"
    )
    return build_target(settings, tmp_path_factory.mktemp("named"))


def make_job(target: Target, folder: Path, prompts: list[Prompt], **changes: Any) -> Job:
    table = folder / "prompts" / "000.parquet"
    table.parent.mkdir(parents=True, exist_ok=True)
    write_prompts(table, prompts)
    provenance = {"dataset": "d", "part": 0, "adapter": ADAPTER}
    sidecar = table.with_suffix(".json")
    write_sidecar(sidecar, "prompts", [table], {"rows": len(prompts)}, provenance)
    wide = {"max_rejected_share": 1.0, "supervised_band": (0.0, 1.0), "max_new_tokens": 32}
    return Job(
        prompts=sidecar,
        target=target.folder / "target.json",
        settings=ResponsesSettings(**{**wide, "keep_truncated": True, **changes}),
        engine="transformers",
        seed=0,
        journal=folder / "journal.jsonl",
        out=folder / "responses" / "000.json",
    )


def rows_of(number: int, *answers: Any) -> Prompt:
    return prompt(*answers, mode="instant", id=f"d-{number}", key=str(number))


def test_native_conversations_are_not_asked(
    kimi_named: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the engine was opened")

    monkeypatch.setattr(phase, "open_engine", refuse)
    prompts = [rows_of(0, said("A nest.")), rows_of(1, said("Eagles."), said("It depends."))]
    job = make_job(kimi_named, tmp_path, prompts)
    answer(job)
    rows = read_responses(job.out.with_suffix(".parquet"))
    assert [row.id for row in rows] == ["d-0.0", "d-1.0", "d-1.1"]
    assert {row.source for row in rows} == {AnswerSource.DATASET}
    assert [row.text for row in rows] == ["A nest.", "Eagles.", "It depends."]
    assert len({row.request_digest for row in rows}) == 3
    tokenizer = kimi_named.tokenizer()
    assert "assistant\nEagles.<|im_end|>" in str(tokenizer.decode(rows[2].prompt_ids))
    assert all(row.finish_reason == "stop" and row.output_ids[-1] == 2 for row in rows)
    sidecar = json.loads(job.out.read_text())
    assert sidecar["counts"]["native"] == {"used": 2, "failed": {}}
    assert sidecar["counts"]["rows"] == 3
    assert sidecar["provenance"]["native_claim"] == "moonshotai/Kimi-K2.5"
    assert damage(job.out) == []
    assert job.journal.read_bytes() == b""
    first = {file.name: file.read_bytes() for file in job.out.parent.iterdir()}
    answer(job)
    assert {file.name: file.read_bytes() for file in job.out.parent.iterdir()} == first


def test_what_fails_is_asked_and_counted(kimi_named: Target, tmp_path: Path) -> None:
    prompts = [
        rows_of(0, said("A nest.")),
        rows_of(1, said("<tool_call>{}</tool_call>")),
        rows_of(2, said("Eagles."), said("Hm.", "I think")),
        replace(rows_of(3), turns=["Hi there"], native=None),
    ]
    job = make_job(kimi_named, tmp_path, prompts)
    answer(job)
    sidecar = json.loads(job.out.read_text())
    assert sidecar["counts"]["native"] == {
        "used": 1,
        "failed": {"foreign_markup": 1, "think_in_instant_mode": 1},
    }
    rows = {row.id: row for row in read_responses(job.out.with_suffix(".parquet"))}
    sources = {row.source for id, row in rows.items() if id != "d-0.0"}
    assert rows["d-0.0"].source is AnswerSource.DATASET
    assert sources == {AnswerSource.TARGET}
    asked = {json.loads(line)["digest"] for line in job.journal.read_text().splitlines()}
    assert rows["d-0.0"].request_digest not in asked
    assert {row.request_digest for id, row in rows.items() if id != "d-0.0"} <= asked


def test_native_can_be_turned_off(kimi_named: Target, tmp_path: Path) -> None:
    job = make_job(kimi_named, tmp_path, [rows_of(0, said("A nest."))], native=False)
    answer(job)
    (row,) = read_responses(job.out.with_suffix(".parquet"))
    assert row.source is AnswerSource.TARGET
    counts = json.loads(job.out.read_text())["counts"]
    assert counts["native"] == {"used": 0, "failed": {}}
