"""The bench on a tiny target, and the incident: a draft that is fed the final state alone."""

import json
from pathlib import Path
from typing import Any

import pytest

import aerie.bench.run
from aerie.bench.run import bench
from aerie.config import BenchSettings
from aerie.engines.transformers.speculate import ServedDraft
from aerie.engines.transformers.taps import Taps
from aerie.errors import GateError
from aerie.train.rope import inverse_frequencies
from tests.engine.conftest import SETTINGS as TRAINING
from tests.engine.conftest import Raised

SETTINGS = BenchSettings(
    suites={"tiny": "-"}, k=3, max_new_tokens=30, repeats=2, timed_prompts=4,
    min_accept_length=1.05, simulated_tolerance=0.01,
)  # fmt: skip

SHORT = TRAINING.model_copy(update={"epochs": 1})


def measure(raised: Raised, out: Path) -> dict[str, Any]:
    result = out / "tiny.json"
    bench(SETTINGS, "main", "tiny", raised.suite, raised.draft, raised.target, 1, result)
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return content


def feed_the_final_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a target sends under `--speculative-algorithm EAGLE`: its last state, H wide."""
    monkeypatch.setattr(Taps, "aux", lambda taps: taps._taken[taps._layers[-1]])


def test_a_healthy_draft_passes_and_serving_equals_the_simulation(
    raised: Raised, tmp_path: Path
) -> None:
    result = measure(raised, tmp_path)
    assert result["accept_length"] > 1.2
    # In float32 the walk over captured states and the served loop see the same numbers.
    assert result["accept_length"] == pytest.approx(result["simulated_accept_length"], abs=1e-3)
    assert result["equal_outputs"]["rate"] == 1
    low, high = result["accept_length_ci95"]
    assert low <= result["accept_length"] <= high
    assert result["accept_length"] == pytest.approx(
        1 + result["accepted"] / result["rounds"], abs=1e-4
    )
    assert result["speedup"] == pytest.approx(
        result["draft"]["tokens_per_s"] / result["plain"]["tokens_per_s"], rel=1e-3
    )
    assert not (tmp_path / "tiny.failed.json").exists()
    assert result["parity"]["rows"] > 8 and result["parity"]["apart"] < 1e-5


@pytest.mark.parametrize("wrong", ["rotation", "token"])
def test_an_engine_that_computes_another_draft_is_stopped_before_anything_is_measured(
    raised: Raised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "rotation":
        # Of the engine alone: what trains imports its own.
        monkeypatch.setattr(
            "aerie.train.model.inverse_frequencies",
            lambda *given: inverse_frequencies(*given).flip(0),
        )
    else:
        logits = ServedDraft.logits
        monkeypatch.setattr(
            ServedDraft, "logits", lambda draft, aux, ids: logits(draft, aux, [*ids[1:], ids[0]])
        )
    with pytest.raises(GateError, match="apart after") as caught:
        measure(raised, tmp_path)
    assert caught.value.gate == "parity"
    assert list(tmp_path.iterdir()) == []


def test_the_incident_is_stopped_before_anything_is_measured(
    raised: Raised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_the_final_state(monkeypatch)
    with pytest.raises(GateError) as caught:
        measure(raised, tmp_path)
    message = str(caught.value)
    assert caught.value.gate == "serving"
    assert "`--speculative-algorithm EAGLE` instead of `EAGLE3`" in message
    assert "`fc` is skipped" in message
    assert list(tmp_path.iterdir()) == []


def test_the_incident_is_stopped_by_its_accept_length_too(
    raised: Raised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line of defence: an engine that hides its widths still cannot hide the AL."""
    feed_the_final_state(monkeypatch)
    monkeypatch.setattr(aerie.bench.run, "check_serving", lambda *widths: None)
    monkeypatch.setattr(aerie.bench.run, "_parity", lambda *others: {})
    with pytest.raises(GateError) as caught:
        measure(raised, tmp_path)
    assert caught.value.gate == "accept"
    causes = str(caught.value)
    assert causes.index("EAGLE3") < causes.index("off by one")
    assert not (tmp_path / "tiny.json").exists()
    assert (tmp_path / "tiny.failed.json").exists()


def test_layers_that_are_off_by_one_lose_acceptance(
    raised: Raised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the parity: the comparison would notice other layers."""
    healthy = measure(raised, tmp_path)["accept_length"]
    plain_aux = Taps.aux
    monkeypatch.setattr(Taps, "aux", lambda taps: plain_aux(taps).roll(1, dims=-1))
    with pytest.raises(GateError) as caught:
        measure(raised, tmp_path / "shifted")
    assert caught.value.gate == "accept"
    failed = json.loads((tmp_path / "shifted/tiny.failed.json").read_text(encoding="utf-8"))
    assert failed["accept_length"] < healthy


def test_training_resumes_exactly(raised: Raised, tmp_path: Path) -> None:
    """Stop after any step, continue, same weights."""
    from aerie.train.trainer import Trainer

    whole = raised.draft.with_name("model.safetensors").read_bytes()
    step = Trainer.step
    for stop in (0, 5, 13):

        def stopping(self: Any, number: int, packs: Any, stop: int = stop) -> Any:
            if number == stop:
                raise KeyboardInterrupt
            return step(self, number, packs)

        out = tmp_path / str(stop)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", stopping)
            with pytest.raises(KeyboardInterrupt):
                raised.train(out)
        sidecar = raised.train(out)
        assert sidecar.with_name("model.safetensors").read_bytes() == whole
        assert sidecar.read_bytes() == raised.draft.read_bytes()
        assert not (out / "checkpoints").exists()


def test_a_checkpoint_of_another_contract_is_named_and_left(
    raised: Raised, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted = SHORT.model_copy(update={"epochs": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerie.train.run.write_draft", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            raised.train(tmp_path, interrupted)
    with caplog.at_level("INFO", logger="aerie"):
        raised.train(tmp_path, SHORT)
    assert "settings.epochs: 2 then, 1 now" in caplog.text


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt
