"""A server that hangs, fails, lies or gives NaN: the same answers, or a clear refusal."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.layers import Layers
from aerie.engines.base import Captured
from aerie.engines.sglang.stream import SglangStream
from aerie.errors import AerieError
from aerie.gates.states import check_batch
from aerie.responses import run as phase
from aerie.responses.run import answer
from aerie.target import Target
from tests.faults.ledger import Ledger
from tests.generate_double import GenerateDouble
from tests.unit.test_responses import make_job, written
from tests.unit.test_responses_flow import Answers

FAULTS: dict[str, Any] = {
    "HTTP 500": 500, "HTTP 503": 503, "connection cut": "drop", "dies": "die",
    "reply of another request": "wrong_id", "fewer tokens than it counts": "wrong_count",
    "no tokens": "no_ids", "gives up": "abort", "no JSON": "not_json",
}  # fmt: skip
TRIALS = 3


@dataclass(frozen=True)
class Patience:
    """A client that gives up on a reply soon."""

    concurrency: int = 4
    request_timeout_s: float = 0.5
    tries: int = 6


@contextmanager
def serving(double: GenerateDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def opened(name: str, target: Target, log: Path) -> Iterator[SglangStream]:
        yield SglangStream([double], Patience(), target.end_token_ids)

    with monkeypatch.context() as patched, double:
        patched.setattr(phase, "open_stream", opened)
        # Waits between attempts are the client's own business, and tested there.
        patched.setattr("aerie.engines.sglang.client._LONGEST_WAIT", 0.01)
        yield


def answered(
    double: GenerateDouble, target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    job = replace(make_job(target, folder), engine="sglang")
    with serving(double, monkeypatch):
        answer(job)
    return written(job)


def test_a_server_that_fails(
    tiny_target: Target,
    answers: Answers,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = answered(GenerateDouble(answers), tiny_target, tmp_path / "whole", monkeypatch)
    cases: list[tuple[str, dict[str, Any]]] = [
        *((name, {"fault": _some(fault)}) for name, fault in FAULTS.items()),
        ("hangs", {"delay": lambda name, attempt: 60.0 if _chosen(name) and attempt == 1 else 0.0}),
        ("another order", {"delay": lambda name, attempt: random.Random(name).random() / 10}),
    ]
    for name, double in cases:
        for trial in range(TRIALS):
            folder = tmp_path / f"{name} {trial}"
            served = GenerateDouble(answers, **double)
            try:
                same = answered(served, tiny_target, folder, monkeypatch) == whole
            except AerieError as error:
                outcome, note = "refused_clearly", str(error)
            else:
                outcome, note = ("recovered" if same else "wrong"), "other answers"
            ledger.add(f"server: {name}", outcome, note)
    assert not ledger.bad("server")


def _chosen(name: str) -> bool:
    return random.Random(name).random() < 0.3


def _always(fault: Any) -> Any:
    return lambda name, attempt: fault


def _some(fault: Any) -> Any:
    return lambda name, attempt: fault if _chosen(name) and attempt <= 2 else None


def test_a_server_that_always_fails_is_refused(
    tiny_target: Target,
    answers: Answers,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, fault in FAULTS.items():
        if fault == "die":
            continue
        double = GenerateDouble(answers, _always(fault))
        try:
            answered(double, tiny_target, tmp_path / name, monkeypatch)
        except AerieError as error:
            outcome = "refused_clearly" if "remedy" in str(error) else "wrong"
            ledger.add("server: never right", outcome, str(error))
        else:
            ledger.add("server: never right", "wrong", f"{name}: answers out of nothing")
    assert not ledger.bad("server: never right")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
@pytest.mark.parametrize("place", ["aux", "last"])
def test_states_that_are_none(ledger: Ledger, value: float, place: str) -> None:
    states = {"aux": torch.ones(5, 24).bfloat16(), "last": torch.ones(5, 8).bfloat16()}
    states[place][2] = value
    try:
        check_batch([Captured(**states)], [[1, 2, 3, 4, 5]], Layers((2, 3, 5)), 8)
    except AerieError:
        ledger.add("server: NaN or zero states", "refused_clearly")
    else:
        ledger.add("server: NaN or zero states", "wrong", f"{value} in {place}")
    assert not ledger.bad("server: NaN")
