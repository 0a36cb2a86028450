"""From conversations to requests: what is asked of the target, and the digest that names it."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import Prompt
from aerie.contracts.responses import AnswerSource
from aerie.engines.base import Request
from aerie.files import digest_json
from aerie.target import Target, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Conversation:
    """A prompt and the answers that its turns have had so far, as messages of its history."""

    prompt: Prompt
    answers: list[dict[str, Any]] = field(default_factory=list)
    rejected: bool = False

    @property
    def turns_left(self) -> int:
        """Turns still to be asked; none follow a rejected answer."""
        return 0 if self.rejected else len(self.prompt.turns) - len(self.answers)

    @property
    def id(self) -> str:
        """The id of the answer to the next turn."""
        return f"{self.prompt.id}.{len(self.answers)}"

    def messages(self) -> list[dict[str, Any]]:
        """The messages up to the next user turn."""
        system = self.prompt.system
        result = [] if system is None else [{"role": "system", "content": system}]
        for turn, answer in zip(self.prompt.turns, self.answers, strict=False):
            result.append({"role": "user", "content": turn})
            result.append(answer)
        result.append({"role": "user", "content": self.prompt.turns[len(self.answers)]})
        return result


@dataclass(frozen=True)
class Ask:
    """One request with the id of its response and the digest of everything that decides it."""

    id: str
    request: Request
    digest: str


def sampling(settings: ResponsesSettings, seed: int) -> dict[str, Any]:
    """What decides how answers are sampled, and no more: greedy answers have no seed."""
    chosen: dict[str, Any] = {
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
    }
    if settings.temperature > 0:
        chosen |= {"top_p": settings.top_p, "seed": seed}
    return chosen


def row_seed(seed: int, id: str) -> int:
    """The seed of one row: it depends on no other row. 63 bits."""
    return int(digest_json([seed, id])[:16], 16) >> 1


def request_digest(
    target: Target, sampled: dict[str, Any], mode: str, prompt_ids: list[int]
) -> str:
    """Digest of everything that decides an answer; `sampled` carries the row's own seed.

    The target's revision covers its weights, tokenizer and template.
    """
    return digest_json(
        {
            "target": target.revision,
            "dtype": target.dtype,
            "sampling": sampled,
            "mode": mode,
            "prompt_ids": prompt_ids,
        }
    )


def native_digest(target: Target, mode: str, prompt_ids: list[int], output_ids: list[int]) -> str:
    """Digest of an answer that a dataset holds. The ids stand for its text, to the last byte."""
    return digest_json(
        {
            "target": target.revision,
            "source": AnswerSource.DATASET,
            "mode": mode,
            "prompt_ids": prompt_ids,
            "output_ids": output_ids,
        }
    )


def make_ask(
    conversation: Conversation,
    prompt_ids: list[int],
    target: Target,
    settings: ResponsesSettings,
    seed: int,
) -> Ask:
    """The request for the next turn of `conversation`, rendered as `prompt_ids`."""
    own_seed = row_seed(seed, conversation.id)
    request = Request(
        prompt_ids=prompt_ids,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=own_seed,
    )
    mode = conversation.prompt.mode
    digest = request_digest(target, sampling(settings, own_seed), mode, prompt_ids)
    return Ask(conversation.id, request, digest)


def render_next(
    conversation: Conversation, tokenizer: "PreTrainedTokenizerBase", target: Target
) -> list[int]:
    """Token ids of the conversation up to where the next answer begins."""
    prompt = conversation.prompt
    tools = json.loads(prompt.tools) if prompt.tools else None
    return render(tokenizer, target, conversation.messages(), prompt.mode, tools)


def batches(asks: list[Ask], size: int) -> list[list[Ask]]:
    """Batches of similar length, the same for the same requests in whatever order they come."""
    ordered = sorted(asks, key=lambda ask: (len(ask.request.prompt_ids), ask.digest))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
