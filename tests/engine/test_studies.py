"""Scaling and the map study on the tiny target, with the real trainer and the real walk."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.vocab import read_map
from aerie.errors import DataError
from aerie.scaling.point import judge_draft, train_point
from aerie.scaling.settings import MapStudySettings
from aerie.vocab.study import write_study
from tests.engine.conftest import SETTINGS, Raised

SHORT = SETTINGS.model_copy(update={"epochs": 2})


def point(raised: Raised, out: Path, divisor: int, seed: int = 0) -> dict[str, Any]:
    settings = SHORT.model_copy(update={"seed": seed})
    train_point(
        settings, divisor, raised.states, raised.map, raised.target, out.parent / "resume", out
    )
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return content


def length(content: dict[str, Any]) -> float:
    held_out = content["held_out"]
    return float(1 + sum(sum(e["accepted"]) for e in held_out) / sum(e["rounds"] for e in held_out))


def test_points_share_the_held_out_samples_and_the_draft_of_all_data_is_judged_alike(
    raised: Raised, tmp_path: Path
) -> None:
    states = {path: path.stat().st_mtime_ns for path in raised.states.parent.rglob("*")}
    quarter = point(raised, tmp_path / "4-0.json", 4)
    again = point(raised, tmp_path / "again.json", 4)
    assert quarter == again
    whole = tmp_path / "1-0.json"
    judge_draft(SETTINGS, raised.states, raised.map, raised.target, raised.draft, whole)
    everything = json.loads(whole.read_text(encoding="utf-8"))
    names = [[entry["prompt"] for entry in found["held_out"]] for found in (quarter, everything)]
    assert names[0] == names[1]
    samples = [found["counts"]["samples"] for found in (quarter, everything)]
    assert samples[0] == -(-samples[1] // 4)
    # Twelve epochs on all samples against two on a quarter of them.
    assert length(everything) > length(quarter)
    # What the trainer itself said of the draft at its end.
    evaluation = json.loads(raised.draft.with_name("eval.json").read_text(encoding="utf-8"))
    overall = evaluation["epochs"][-1]["overall"]
    assert length(everything) == pytest.approx(overall["accept_length"], abs=0.02)
    assert not (tmp_path / "resume").exists()
    # States are read and nothing else.
    assert states == {path: path.stat().st_mtime_ns for path in raised.states.parent.rglob("*")}


def test_a_smaller_map_covers_less_and_the_own_one_loses_nothing(
    raised: Raised, tmp_path: Path
) -> None:
    out = tmp_path / "map_study.json"
    counts = [raised.folder / "vocab/counts/tiny.json"]
    write_study(
        MapStudySettings(sizes=(64,)), SETTINGS, raised.states, raised.map, counts,
        raised.target, raised.draft, out,
    )  # fmt: skip
    study = json.loads(out.read_text(encoding="utf-8"))
    small, own, *larger = study["sizes"]
    assert (small["size"], own["size"]) == (64, 128)
    assert study["own"] == len(read_map(raised.map.with_name("map.safetensors")).target_ids)
    assert small["coverage"] <= own["coverage"] <= larger[-1]["coverage"] == 1
    assert own["lost"] == 0
    assert small["accept_length"] <= own["accept_length"]
    assert small["lost"] == pytest.approx(own["accept_length"] - small["accept_length"], abs=1e-3)
    assert larger[-1]["accept_length"] is None
    assert all(entry["head_seconds"] > 0 for entry in study["sizes"])


def test_a_fraction_needs_held_out_samples(raised: Raised, tmp_path: Path) -> None:
    none = SHORT.model_copy(update={"eval_share": 1e-9})
    with pytest.raises(DataError, match="too few samples"):
        train_point(
            none, 2, raised.states, raised.map, raised.target, tmp_path / "r", tmp_path / "p.json"
        )
