"""The parity gate: what roundings explain, and what they do not."""

import pytest
import torch

from aerie.errors import GateError
from aerie.gates.parity import TOLERANCES, check_parity

TRAINER = torch.linspace(-3, 5, 1000)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rounding_to_the_precision_passes(dtype: str) -> None:
    engine = TRAINER.to(getattr(torch, dtype))
    assert check_parity(engine, TRAINER, dtype, 40) < TOLERANCES[dtype] / 3


@pytest.mark.parametrize(
    "engine",
    [TRAINER.roll(1), TRAINER * 1.1, TRAINER.clone().fill_(float("nan")), torch.empty(0)],
    ids=["another order", "another scale", "no numbers", "none"],
)
def test_anything_else_is_refused(engine: torch.Tensor) -> None:
    with pytest.raises(GateError, match="other logits than training did") as caught:
        check_parity(engine, TRAINER, "float32", 40)
    assert caught.value.gate == "parity"
