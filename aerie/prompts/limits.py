"""What a target does not take: text that it would read as control tokens, and prompts too long."""

import json
import re
from collections.abc import Callable, Iterable

from aerie.contracts.prompts import Reason
from aerie.prompts.normalise import Normalised, Rejected
from aerie.target import Target, render

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


class TargetLimits:
    """Judges prompts by a target's tokenizer.

    `count` gives the tokens of a prompt as the target's template renders it; `special` are the
    strings that its tokenizer reads as control tokens.
    """

    def __init__(
        self, max_tokens: int, special: Iterable[str], count: Callable[[Normalised], int]
    ) -> None:
        self.max_tokens = max_tokens
        strings = sorted({*_MARKERS, *filter(None, special)}, key=lambda text: (-len(text), text))
        self._special = re.compile("|".join(map(re.escape, strings)))
        self._count = count
        self._frame = count(Normalised(None, ["a"]))

    @classmethod
    def of(cls, target: Target, max_tokens: int, mode: str) -> "TargetLimits":
        """The limits of `target`, whose tokenizer is loaded here."""
        tokenizer = target.tokenizer()
        special = tokenizer.convert_ids_to_tokens(list(target.special_token_ids))

        def count(prompt: Normalised) -> int:
            tools = json.loads(prompt.tools) if prompt.tools else None
            return len(render(tokenizer, target, _as_messages(prompt), mode, tools))

        return cls(max_tokens, special, count)

    def check(self, prompt: Normalised) -> None:
        """Pass a prompt that the target takes.

        Raises:
            Rejected: it holds the text of a special token, or more than `max_tokens` tokens.
        """
        texts = [prompt.system or "", *prompt.turns, prompt.tools or ""]
        for text in texts:
            if found := self._special.search(text):
                raise Rejected(Reason.SPECIAL_TOKEN_IN_TEXT, f"holds {found[0]}")
        # A token is a byte at least, so most prompts need not be rendered to know that they fit.
        size = sum(len(text.encode()) for text in texts)
        if not prompt.tools and not prompt.system and size + self._frame <= self.max_tokens:
            return
        tokens = self._count(prompt)
        if tokens > self.max_tokens:
            raise Rejected(
                Reason.PROMPT_TOO_LONG, f"{tokens:,} tokens, at most {self.max_tokens:,}"
            )


def _as_messages(prompt: Normalised) -> list[dict[str, str]]:
    """All user turns as one: some templates refuse turns that do not alternate with answers."""
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, {"role": "user", "content": "\n\n".join(prompt.turns)}]
