"""Tracking: what is counted, where it is shown, and that no tracker can end or change a run."""

import importlib.metadata
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch.utils.flop_counter import FlopCounterMode

from aerie.config import ROOT
from aerie.contracts.states import Sample
from aerie.errors import ConfigError
from aerie.train import trackers
from aerie.train.flops import attention_flops, product_flops
from aerie.train.objective import objective
from aerie.train.packing import make_pack
from aerie.train.settings import TrackingSettings, WandbSettings
from aerie.train.speed import Speed, matrix_rate
from aerie.train.trackers import JsonLines, Maker, makers
from aerie.train.tracking import Tracking
from aerie.train.weights import Weights
from tests.unit.train_fixtures import (
    CONFIG,
    VOCAB,
    make_trainer,
    write_samples,
)

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = CONFIG.heads * CONFIG.head_dim


def test_the_products_that_are_counted_are_those_that_run(tmp_path: Path) -> None:
    """Against PyTorch's own count of every matrix product, on a pack without padding."""
    steps, prompt, answer = 3, 20, 128
    length = prompt + answer + 1
    mask = torch.tensor([0] * (length - answer - 1) + [1] * (answer + 1), dtype=torch.uint8)
    sample = Sample(
        torch.arange(length, dtype=torch.int32) % VOCAB, mask,
        torch.randn(length, CONFIG.aux_width).bfloat16(),
        torch.randn(length, CONFIG.hidden_size).bfloat16(),
    )  # fmt: skip
    pack = make_pack([sample])
    assert len(pack.supervised) == answer
    trainer = make_trainer(tmp_path, write_samples(tmp_path))
    gradient = Weights.zeros(CONFIG, torch.float32, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        objective(trainer.layout.weights, gradient, trainer.frozen, pack, steps, 0.8)
    counted = counter.get_flop_counts()["Global"]
    products = sum(
        flops for operation, flops in counted.items()
        if str(operation) in ("aten.mm", "aten.addmm")
    )  # fmt: skip
    assert product_flops(CONFIG, len(pack.token_ids), [answer] * steps) == products


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1), st.integers(1, 4))
def test_attention_is_counted_pair_by_pair(lengths: list[tuple[int, int]], steps: int) -> None:
    samples = [(prompt + answer, answer) for prompt, answer in lengths]
    pairs = sum(
        row + 1 + step
        for rows, answer in samples
        for step in range(steps)
        for row in range(rows - answer, rows - step)
    )
    assert attention_flops(CONFIG, samples, steps) == pairs * HEADS * 2 * 2 * 3


def test_speed_is_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 10.0, 14.0, 14.0))
    monkeypatch.setattr("aerie.train.speed.time.perf_counter", lambda: next(now))
    speed = Speed(1000.0)
    speed.restart(waited=5.0)
    for _ in range(2):
        speed.add(tokens=40, flops=1000)
    assert speed.read(waited=6.0) == {"tokens_per_s": 20.0, "mfu": 0.5, "waiting_share": 0.25}


def test_the_matrix_rate_is_that_of_products() -> None:
    rate = matrix_rate(torch.float32, torch.device("cpu"))
    # From a slow core to more than any socket has.
    assert 1e8 < rate < 1e14


class Failing:
    """A tracker that breaks at its second line."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.written += 1
        if self.written > 1:
            raise ConnectionError("no route to host")

    def close(self) -> None:
        raise AssertionError("it was dropped")


def refuse(step: int) -> Failing:
    raise PermissionError("no key")


def test_a_run_shows_its_figures_and_goes_on_without_trackers_that_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = write_samples(tmp_path)
    plain = make_trainer(tmp_path / "plain", samples)
    plain.run()
    failing = Failing()
    chosen: dict[str, Maker] = {
        "refuser": refuse,
        "breaker": lambda step: failing,
        **makers(TrackingSettings(), tmp_path / "shown", "tiny", {}),
    }
    tracking = Tracking(chosen)
    trainer = make_trainer(tmp_path / "tracked", samples, tracking=tracking)
    with caplog.at_level("WARNING", logger="aerie"):
        trainer.run()
        tracking.close()
    assert caplog.text.count("refuser failed") == caplog.text.count("breaker failed") == 1
    assert "no route to host" in caplog.text and failing.written == 2
    assert torch.equal(trainer.layout.optimizer.master, plain.layout.optimizer.master)
    assert trainer.state["records"] == plain.state["records"]
    lines = read_lines(tmp_path / "shown/tracking.jsonl")
    assert lines[0]["speed/matrix_tflops"] > 0
    trained = [line for line in lines if "train/loss" in line]
    assert [line["train/loss"] for line in trained] == [r["loss"] for r in plain.state["records"]]
    assert [line["losses/step_1"] for line in trained] == [
        record["losses"][1] for record in plain.state["records"]
    ]
    speeds = [line for line in lines if "speed/mfu" in line]
    assert speeds and all(0 < line["speed/mfu"] < 1 for line in speeds)
    assert all(line["speed/tokens_per_s"] > 0 for line in speeds)
    assert all(0 <= line["speed/waiting_share"] <= 1 for line in speeds)
    held_out = [
        line["held_out/accept_length"] for line in lines if "held_out/accept_length" in line
    ]
    assert held_out == [epoch["overall"]["accept_length"] for epoch in plain.state["epochs"]]
    assert any("held_out/tiny/acceptance_2" in line for line in lines)


def test_a_run_that_goes_on_appends_and_one_that_begins_replaces(tmp_path: Path) -> None:
    for step, loss in ((0, 3.0), (5, 2.0)):
        tracker = JsonLines(tmp_path, step)
        tracker.write(step + 1, {"train/loss": loss})
        tracker.close()
    assert [line["step"] for line in read_lines(tmp_path / "tracking.jsonl")] == [1, 6]
    JsonLines(tmp_path, 0).close()
    assert read_lines(tmp_path / "tracking.jsonl") == []


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "settings",
    [TrackingSettings(tensorboard=True), TrackingSettings(wandb=WandbSettings(project="x"))],
)
def test_a_package_that_is_missing_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: TrackingSettings
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"requirements/tracking\.txt"):
        makers(settings, tmp_path, "tiny", {})


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrackingSettings(tensorboard=True, wandb=WandbSettings(project="eagles"))
    monkeypatch.setenv("AERIE_TRACKING", settings.as_json())
    assert TrackingSettings.from_environment() == settings
    monkeypatch.delenv("AERIE_TRACKING")
    assert TrackingSettings.from_environment() == TrackingSettings()
    monkeypatch.setenv("AERIE_TRACKING", '{"tensorbord": true}')
    with pytest.raises(ConfigError, match="AERIE_TRACKING"):
        TrackingSettings.from_environment()


def test_tensorboard_files_hold_the_scalars_and_hide_steps_that_are_repeated(
    tmp_path: Path,
) -> None:
    make = makers(TrackingSettings(tensorboard=True), tmp_path, "tiny", {})["TensorBoard"]
    for step in (0, 5):
        tracker = make(step)
        tracker.write(step + 1, {"train/loss": 2.5 - step, "speed/mfu": 0.5})
        tracker.close()
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert len(files) == 2
    for file, step in zip(files, (0, 5), strict=True):
        version, start, scalars = read_events(file)
        assert version.file_version == "brain.Event:2"
        assert start.session_log.status == 1 and start.step == (step + 1 if step else 0)
        assert scalars.step == step + 1
        assert {value.tag: value.simple_value for value in scalars.summary.value} == {
            "train/loss": 2.5 - step, "speed/mfu": 0.5,
        }  # fmt: skip


def test_a_full_disk_ends_tensorboard_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shown"
    made = makers(TrackingSettings(tensorboard=True), folder, "tiny", {})

    def full(step: int) -> Any:
        tracker: Any = made["TensorBoard"](step)
        descriptor = os.open("/dev/full", os.O_WRONLY)
        os.dup2(descriptor, tracker._file._py_recordio_writer._writer.fileno())
        os.close(descriptor)
        return tracker

    tracking = Tracking({**made, "TensorBoard": full})
    trainer = make_trainer(tmp_path, write_samples(tmp_path), tracking=tracking)
    with caplog.at_level("WARNING", logger="aerie"):
        trainer.run()
        tracking.close()
    assert caplog.text.count("TensorBoard failed") == 1 and "No space left" in caplog.text
    assert trainer.state["step"] == len(trainer.schedule)
    assert read_lines(folder / "tracking.jsonl")[-1]["step"] == len(trainer.schedule)


def read_events(file: Path) -> Iterator[Any]:
    """The records of an event file: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content, place = file.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield Event.FromString(content[place + 12 : place + 12 + length])
        place += 16 + length


def test_a_run_of_weights_and_biases_goes_on_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    settings = TrackingSettings(wandb=WandbSettings(project="eagles", mode="offline"))
    make = makers(settings, tmp_path, "tiny", {"seed": 0})["Weights & Biases"]
    identities = []
    for step in (0, 5, 0):
        tracker = make(step)
        tracker.write(step + 1, {"train/loss": 2.5})
        tracker.close()
        identities.append((tmp_path / "wandb.id").read_text(encoding="utf-8"))
    assert identities[0] == identities[1] != identities[2]
    kept = [path.name for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb")]
    assert {f"run-{identity}.wandb" for identity in identities} == set(kept)


def test_requirements_of_tracking_are_complete() -> None:
    pins: dict[str, Requirement] = {}
    for name in ("run.txt", "tracking.txt"):
        for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
            if line and line[0] != "#":
                requirement = Requirement(line.split(" #")[0])
                pins[canonicalize_name(requirement.name)] = requirement
    versions = {n: importlib.metadata.version(n) for n in ("tensorboardX", "wandb")}
    for name in (*versions, "protobuf", "sentry-sdk"):
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version = next(iter(pins[canonicalize_name(needed.name)].specifier)).version
                assert needed.specifier.contains(version), f"{name} needs {line}"
