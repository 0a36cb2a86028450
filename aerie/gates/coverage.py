"""The coverage gate: the map keeps enough of what the draft will be asked to predict."""

from collections.abc import Mapping

from aerie.config import VocabSettings
from aerie.errors import GateError


def check_coverage(overall: float, datasets: Mapping[str, float], settings: VocabSettings) -> None:
    """Check the share of supervised tokens that the map keeps.

    A token outside the map can never be proposed: coverage bounds the accept length.

    Raises:
        GateError: coverage is below the floor overall or in a dataset, worst first.
    """
    low = sorted(
        (value, name) for name, value in datasets.items() if value < settings.dataset_floor
    )
    named = [(f"dataset {name}", value, settings.dataset_floor) for value, name in low]
    if overall < settings.floor:
        named.insert(0, ("all datasets together", overall, settings.floor))
    if not named:
        return
    raise GateError(
        "coverage",
        "the map leaves out too many supervised tokens",
        saw="; ".join(f"{name}: {value:.4f}" for name, value, _ in named),
        expected="; ".join(f"{name}: at least {floor}" for name, _, floor in named),
        remedy=f"raise vocab.size above {settings.size}, or take more prompts of what is low; "
        "the log lists the tokens that are missed most",
    )
