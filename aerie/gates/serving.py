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


def check_layers(layers: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    """Check the layers that the server resolved, as indices into `output_hidden_states`.

    Raises:
        GateError: the target hands other layers to the draft than it was trained on.
    """
    if layers != expected:
        raise GateError(
            "serving",
            "the target hands other layers to the draft than it was trained on",
            saw="none that could be seen" if layers is None else list(layers),
            expected=list(expected),
            remedy="`eagle_aux_hidden_state_layer_ids` in the draft's config.json is one less than "
            "these and begins with 1; SGLang before 0.5.13 read it otherwise",
        )
