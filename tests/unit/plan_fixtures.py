"""A configuration and facts for tests of the plan: Kimi-K2.5's sizes unless said otherwise."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.config import Config
from aerie.plan.facts import DatasetFacts, Facts
from aerie.plan.lengths import Answers
from aerie.plan.rates import Rates
from aerie.plan.settings import Shape

KIMI = Shape(layers=61, hidden_size=7168, max_position=262144)
CHAT = "HuggingFaceH4/ultrachat_200k"
REASONING = "open-thoughts/OpenThoughts-114k"
TB = 10**12


def config(takes: Mapping[str, int] | None = None, **changes: Any) -> Config:
    """A configuration for `takes` prompts of each adapter; `a__b=1` sets `a.b`."""
    datasets = {
        f"d{number}": {"adapter": adapter, "path": "data", "take": take}
        for number, (adapter, take) in enumerate((takes or {CHAT: 100_000}).items())
    }
    content: dict[str, Any] = {
        "work": "results/test",
        "engine": "sglang",
        "target": {"name": "Kimi-K2.5", "source": {"path": "models/kimi"}},
        "datasets": datasets,
        "drafts": {"main": {"epochs": 4}},
        "bench": {"suites": {"heldout": "demo/suites/heldout.jsonl"}},
    }
    for name, value in changes.items():
        section = content
        *parents, last = name.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return Config.model_validate(content)


def answers(tokens: int, prompt: int = 100, count: int = 10) -> DatasetFacts:
    """A dataset whose answers all have `tokens` tokens, prompt included."""
    lengths = Answers(np.full(count, prompt), np.full(count, tokens - prompt))
    return DatasetFacts(answers=lengths, answers_per_prompt=1.0)


def facts(settings: Config, known: DatasetFacts | None = None, **changes: Any) -> Facts:
    """Facts of a work folder that is empty but for what `known` says of every dataset."""
    given: dict[str, Any] = {
        "shape": KIMI,
        "shape_source": "plan.shape",
        "datasets": dict.fromkeys(settings.datasets, known or DatasetFacts()),
        "rates": Rates(),
        "points": (),
        "free": 100 * TB,
        "present": 0,
        "responses_bytes_per_token": None,
        "draft_bytes": None,
        "done": {},
    }
    return Facts(**(given | changes))
