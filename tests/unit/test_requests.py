"""Requests: what decides an answer is in its digest, and nothing else is."""

from dataclasses import replace
from typing import Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import Prompt
from aerie.responses.requests import (
    Ask,
    Conversation,
    batches,
    make_ask,
    render_next,
    row_seed,
    sampling,
)
from aerie.target import Target

PROMPT = Prompt("p1", "chat", "k", 1, "instant", "Be brief.", ["What is an eagle?", "And why?"])
GREEDY = ResponsesSettings()
SAMPLED = ResponsesSettings(temperature=0.7, top_p=0.9)


def ask(target: Target, settings: ResponsesSettings, seed: int = 0, **changes: Any) -> Ask:
    prompt_ids = changes.pop("prompt_ids", [1, 2, 3])
    conversation = Conversation(replace(PROMPT, **changes))
    return make_ask(conversation, prompt_ids, target, settings, seed)


def test_messages_grow_with_the_answers() -> None:
    conversation = Conversation(PROMPT)
    system, first = {"role": "system", "content": "Be brief."}, "What is an eagle?"
    assert conversation.messages() == [system, {"role": "user", "content": first}]
    assert (conversation.id, conversation.turns_left) == ("p1.0", 2)
    conversation.answers.append({"role": "assistant", "content": "A bird."})
    assert conversation.messages() == [
        system,
        {"role": "user", "content": first},
        {"role": "assistant", "content": "A bird."},
        {"role": "user", "content": "And why?"},
    ]
    assert (conversation.id, conversation.turns_left) == ("p1.1", 1)
    conversation.rejected = True
    assert conversation.turns_left == 0


def test_rendered_prompt_opens_an_answer(tiny_target: Target) -> None:
    tokenizer = tiny_target.tokenizer()
    text = str(tokenizer.decode(render_next(Conversation(PROMPT), tokenizer, tiny_target)))
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert text.endswith("What is an eagle?<|im_end|>\n<|im_start|>assistant\n")


def test_digest_covers_what_decides_an_answer(tiny_target: Target) -> None:
    base = ask(tiny_target, SAMPLED).digest
    assert ask(tiny_target, SAMPLED).digest == base
    others = [
        ask(tiny_target, SAMPLED, prompt_ids=[1, 2, 4]),
        ask(tiny_target, SAMPLED, mode="thinking"),
        ask(tiny_target, SAMPLED, seed=1),
        ask(tiny_target, SAMPLED, id="p2"),
        ask(tiny_target, GREEDY),
        *(
            ask(tiny_target, SAMPLED.model_copy(update=change))
            for change in ({"max_new_tokens": 5}, {"temperature": 0.8}, {"top_p": 0.8})
        ),
        ask(replace(tiny_target, revision="other"), SAMPLED),
        ask(replace(tiny_target, dtype="bfloat16"), SAMPLED),
    ]
    assert len({base, *(other.digest for other in others)}) == 1 + len(others)


def test_digest_leaves_out_what_does_not(tiny_target: Target) -> None:
    base = ask(tiny_target, GREEDY).digest
    harmless = {"batch_size": 3, "keep_truncated": True, "max_rejected_share": 0.9, "top_p": 0.5}
    assert ask(tiny_target, GREEDY.model_copy(update=harmless)).digest == base
    assert ask(tiny_target, GREEDY, seed=5).digest == base
    assert sampling(GREEDY, 5) == sampling(GREEDY, 6)


def test_row_seeds_are_the_rows_own() -> None:
    assert row_seed(0, "a") == row_seed(0, "a")
    seeds = {row_seed(seed, id) for seed in range(10) for id in "abcdefghij"}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_batches_do_not_depend_on_order(tiny_target: Target) -> None:
    asks = [
        ask(tiny_target, SAMPLED, id=str(number), prompt_ids=[1] * (1 + number % 5))
        for number in range(23)
    ]
    cut = batches(asks, 4)
    assert cut == batches(asks[::-1], 4)
    assert [len(batch) for batch in cut] == [4, 4, 4, 4, 4, 3]
    lengths = [len(ask.request.prompt_ids) for batch in cut for ask in batch]
    assert lengths == sorted(lengths)
