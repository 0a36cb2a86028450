"""The serving gate: what reaches the draft is checked before a single answer is measured."""

from aerie.errors import GateError

FLAG = (
    "the server runs `--speculative-algorithm EAGLE` instead of `EAGLE3`: the target then sends "
    "its final state alone and the draft's `fc` is skipped in silence"
)


def check_serving(states_width: int, expected_width: int) -> None:
    """Check the width of the states that the draft was fed while warming up.

    Raises:
        GateError: `fc` was not called with the concatenated aux states.
    """
    if states_width != expected_width:
        raise GateError(
            "serving",
            "the draft is not fed the target's aux states",
            saw=f"states {states_width} wide",
            expected=f"{expected_width} wide, the captured layers concatenated",
            remedy=f"the likely cause: {FLAG}. Derive the flag from the draft's architecture",
        )
