"""The accept gate: a draft that gains nothing, or not what training promised, is not shipped."""

from typing import Any

from aerie.errors import GateError
from aerie.gates.serving import FLAG

_CAUSES = f"""the likely causes, in order:
    1. {FLAG}
    2. the layers are off by one: `[2, 30, 58]` for transformers is `[1, 29, 57]` for SGLang
    3. `d2t` or `lm_head` is missing from the checkpoint or belongs to another map
    4. RoPE, chat template or mode differ between training and serving"""


def check_accept(result: dict[str, Any], minimum: float, tolerance: float) -> None:
    """Check a finished bench.

    Raises:
        GateError: the accept length is below `minimum`, or further than `tolerance` from the
            simulated one on the same prompts.
    """
    served, simulated = result["accept_length"], result["simulated_accept_length"]
    if served < minimum:
        raise GateError(
            "accept",
            "the draft's tokens are not accepted",
            saw=f"accept length {served:.3f} (simulated {simulated:.3f})",
            expected=f"at least {minimum}",
            remedy=_CAUSES,
        )
    if abs(served - simulated) > tolerance:
        raise GateError(
            "accept",
            "serving does not accept what training promised",
            saw=f"accept length {served:.3f} served, {simulated:.3f} simulated",
            expected=f"a difference of at most {tolerance}",
            remedy=_CAUSES,
        )
