"""The supervision gate: a part has enough to learn from, and not too much of it was rejected."""

from collections.abc import Mapping

from aerie.config import ResponsesSettings
from aerie.contracts.responses import ResponseReason
from aerie.errors import GateError

_CAUSES = {
    ResponseReason.TRUNCATED: "answers are longer than allowed: raise responses.max_new_tokens, "
    "or set responses.keep_truncated",
    ResponseReason.NO_END_TOKEN: "the engine stops where the target does not: check eos_token_id "
    "in the target's generation_config.json",
    ResponseReason.MISSING_THINK_CLOSE: "the target does not think: check "
    "target.thinking_variable and the dataset's mode",
    ResponseReason.EMPTY_MASK: "the engine returns no tokens: look at its log",
    ResponseReason.MALFORMED_THINK: "the target opens or closes its reasoning twice: check the "
    "chat template and the sampling settings",
    ResponseReason.THINK_IN_INSTANT_MODE: "the target thinks although it should not: check "
    "target.thinking_variable and the dataset's mode",
    ResponseReason.EMPTY_ANSWER: "the template does not open an answer, or the prompts ask "
    "nothing: look at the rejected rows",
    ResponseReason.REPETITIVE: "the target loops: raise responses.temperature, and check the "
    "chat template",
    ResponseReason.RETOKENISATION_MISMATCH: "the engine runs another tokenizer than the target's "
    "folder holds",
    ResponseReason.TOKEN_OUT_OF_RANGE: "the engine runs another model than the target",
    ResponseReason.REQUEST_FAILED: "the engine refuses requests or dies of them: its log and the "
    "job's name them",
    ResponseReason.PROMPT_TOO_LONG: "prompts and answers exceed the target's context: lower "
    "prompts.max_tokens or responses.max_new_tokens",
}


def check_supervision(
    where: str,
    prompt_tokens: int,
    output_tokens: int,
    rows: int,
    rejects: Mapping[str, int],
    settings: ResponsesSettings,
) -> None:
    """Check a part: `rows` answers accepted, `rejects` counted by reason, tokens of the accepted.

    A part without any answer passes: there is nothing to judge.

    Raises:
        GateError: too large a share of the answers is rejected, or the share of supervised tokens
            (output tokens among all tokens) is 0 or outside `responses.supervised_band`.
    """
    rejected = sum(rejects.values())
    if not rows + rejected:
        return
    share = rejected / (rows + rejected)
    if share > settings.max_rejected_share:
        most = max(rejects, key=lambda reason: rejects[reason])
        counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejects.items()))
        raise GateError(
            "supervision",
            f"{where}: too many answers are rejected",
            saw=f"{share:.1%} of {rows + rejected:,} ({counts})",
            expected=f"at most {settings.max_rejected_share:.1%} (responses.max_rejected_share)",
            remedy=f"likely cause: {_CAUSES[ResponseReason(most)]}",
        )
    _check_band(where, prompt_tokens, output_tokens, settings)


def _check_band(
    where: str, prompt_tokens: int, output_tokens: int, settings: ResponsesSettings
) -> None:
    low, high = settings.supervised_band
    share = output_tokens / max(prompt_tokens + output_tokens, 1)
    if share > 0 and low <= share <= high:
        return
    if share == 0:
        cause = "no answer was accepted: look at the rejected rows and their reasons"
    elif share < low:
        cause = (
            "answers are short beside their prompts: lower prompts.max_tokens, raise "
            "responses.max_new_tokens, or widen responses.supervised_band if that is expected"
        )
    else:
        cause = (
            "prompts are almost empty: check that the dataset's adapter reads the right column, or "
            "widen responses.supervised_band if that is expected"
        )
    raise GateError(
        "supervision",
        f"{where}: the share of supervised tokens is out of the band",
        saw=f"{share:.2%}: {output_tokens:,} output tokens of {prompt_tokens + output_tokens:,}",
        expected=f"{low:.0%} to {high:.0%} (responses.supervised_band), and more than 0",
        remedy=f"likely cause: {cause}",
    )
