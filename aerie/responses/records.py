"""Rows that show what becomes of an answer: `aerie normalise responses/kimi_k25` and `masks/...`.

Each function reads one row of such a file as the build would read it and says what was done.
"""

from collections.abc import Mapping
from typing import Any

from aerie.contracts.responses import ResponseReason
from aerie.responses.checks import TokenRules
from aerie.responses.message import UnfitMessage, read_record

# moonshotai/Kimi-K2.5: 163,840 ids, <|im_end|>, <think> and </think>.
KIMI_K25 = TokenRules(163_840, (163_586,), 163_606, 163_607)


def show_response(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a chat request, as `aerie.responses.message.read_record` takes it.

    Gives action, reason, flags, and `reasoning`, `content` and `tool_calls` [[id, name, arguments]]
    of an answer that is kept.
    """
    try:
        message = read_record(row)
    except UnfitMessage as no:
        return {**_dropped(no.reason), "reasoning": None, "content": None, "tool_calls": None}
    return {
        "action": "repair" if message.flags else "keep",
        "reason": message.flags[0] if message.flags else None,
        "flags": list(message.flags),
        "reasoning": message.reasoning,
        "content": message.content,
        "tool_calls": [[call.id, call.name, call.arguments] for call in message.tool_calls],
    }


def show_mask(row: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of a prompt and its answer of Kimi-K2.5: `ids` and `prompt_len`.

    Gives the loss mask [t]; with `ttt_shift`, ids and mask as the first step of training-time test
    takes them, and the ids need not be a whole answer.
    """
    from aerie.contracts.states import shifted
    from aerie.states.run import loss_mask

    ids, prompt_tokens = _ids(row.get("ids")), row.get("prompt_len")
    if ids is None or type(prompt_tokens) is not int or prompt_tokens < 0:
        return {"action": "error", "reason": ResponseReason.BAD_CONTENT, "flags": []}
    prompt, output = ids[:prompt_tokens], ids[prompt_tokens:]
    only_shift = bool(row.get("ttt_shift"))
    if reason := _mask_reason(prompt, output, only_shift):
        names = ("target_ids", "target_mask") if only_shift else ("mask",)
        return {**_dropped(reason), **dict.fromkeys(names)}
    kept: dict[str, Any] = {"action": "keep", "reason": None, "flags": []}
    mask = loss_mask(len(prompt), len(output))
    if not only_shift:
        return {**kept, "mask": mask.tolist()}
    import torch

    targets = shifted(torch.tensor(ids), 1)
    return {**kept, "target_ids": targets.tolist(), "target_mask": shifted(mask, 1).tolist()}


def _mask_reason(prompt: list[int], output: list[int], only_shift: bool) -> ResponseReason | None:
    if not output:
        return ResponseReason.EMPTY_MASK
    if only_shift:
        return None
    # The template ends a prompt with <think>, or in instant mode with <think></think>.
    last = prompt[-1] if prompt else None
    thinks = {KIMI_K25.think_open: True, KIMI_K25.think_close: False}.get(last)
    return KIMI_K25.reason(output, thinks=thinks)


def _ids(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(id) is int for id in value) else None


def _dropped(reason: ResponseReason) -> dict[str, Any]:
    return {"action": "drop", "reason": reason, "flags": []}
