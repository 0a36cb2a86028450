"""The parity gate: an engine computes the draft that was trained, before tokens are counted."""

from typing import TYPE_CHECKING

from aerie.errors import GateError

if TYPE_CHECKING:
    from torch import Tensor

# How far roundings alone may take the logits apart, relative to their norm. Of the demo's draft in
# bfloat16 they are 0.003 to 0.005 apart; with half of RoPE's angles 0.13 to 0.32, with tokens
# shifted by one 0.87 to 1.27.
TOLERANCES = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.03}


def check_parity(engine: "Tensor", trainer: "Tensor", dtype: str, rows: int) -> float:
    """Compare logits [K] over the map, of the engine and of the trainer, after the same `rows`.

    Returns their distance, relative to the norm of the trainer's.

    Raises:
        GateError: they are further apart than the precision `dtype` explains.
    """
    engine, trainer = engine.double().cpu(), trainer.double().cpu()
    if engine.shape != trainer.shape:
        raise _apart(f"logits of shape {tuple(engine.shape)}", f"{tuple(trainer.shape)}")
    apart = float((engine - trainer).norm() / trainer.norm())
    # Not a number is further apart than anything.
    if not apart <= TOLERANCES[dtype]:
        raise _apart(
            f"logits {apart:.1%} apart after {rows} rows",
            f"at most {TOLERANCES[dtype]:.1%}, which {dtype} explains",
        )
    return apart


def _apart(saw: str, expected: str) -> GateError:
    return GateError(
        "parity",
        "the engine computes other logits than training did, from the same states and tokens",
        saw=saw,
        expected=expected,
        remedy="compare the draft's config.json with what it was trained with: rope_theta and "
        "rope_scaling, rms_norm_eps, norms before `fc`; then the engine's version",
    )
