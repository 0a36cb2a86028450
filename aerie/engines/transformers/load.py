"""Loads the target with transformers and offers it as an engine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from aerie.engines.base import Answer, Captured, Request
from aerie.engines.transformers.generate import generate
from aerie.errors import EngineError
from aerie.target import Target

if TYPE_CHECKING:
    from aerie.contracts.layers import Layers


def load_model(target: Target) -> PreTrainedModel:
    """The target's model in its dtype, for inference, with sdpa attention.

    Raises:
        EngineError: the checkpoint cannot be read, or weights are missing or of the wrong shape.
    """
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            target.folder,
            dtype=getattr(torch, target.dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError(
            f"{target.folder} cannot be loaded", saw=error, remedy="run `make verify ARGS=--repair`"
        ) from error
    model, info = loaded
    wrong = {key: sorted(map(str, info[key])) for key in ("missing_keys", "mismatched_keys")}
    if any(wrong.values()):
        raise EngineError(
            f"the weights in {target.folder} do not fit config.json",
            saw=wrong,
            expected="every weight of the model, each in its shape",
            remedy="give a whole checkpoint in target.source",
        )
    ready: PreTrainedModel = model.eval().requires_grad_(False)
    return ready


class TransformersEngine:
    """The target in this process. The same batch and the same `threads` give the same numbers.

    Raises:
        EngineError: the target cannot be loaded.
    """

    def __init__(self, target: Target, threads: int) -> None:
        torch.set_num_threads(threads)
        self.target = target
        self.model = load_model(target)

    def generate(self, batch: Sequence[Request]) -> list[Answer]:
        """Answer the requests of one batch together; see `generate.generate`."""
        return generate(self.model, batch, self.target.end_token_ids)

    def capture(self, batch: Sequence[Sequence[int]], layers: "Layers") -> list[Captured]:
        """States of each sequence of token ids by one forward pass over the batch."""
        from aerie.engines.transformers.capture import capture

        return capture(self.model, batch, layers)
