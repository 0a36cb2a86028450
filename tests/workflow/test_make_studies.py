"""Studies of a finished build: the jobs that they start, and what they take from it."""

from typing import Any

import pytest

from aerie.files import digest_file, read_json
from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.workflow


def kept(checkout: Checkout) -> dict[str, Any]:
    """Bytes and times of everything that a study reads and may not make."""
    folders = ("target", "responses", "states", "vocab", "draft")
    return {
        str(path): (digest_file(path), path.stat().st_mtime_ns)
        for folder in folders
        for path in sorted((checkout.work / folder).rglob("*"))
        if path.is_file()
    }


def jobs(checkout: Checkout, *arguments: str) -> list[str]:
    run = checkout.snakemake(*arguments)
    assert run.code == 0, run.text
    return run.jobs


def test_scaling_trains_fractions_from_the_states_that_are_there(checkout: Checkout) -> None:
    checkout.configure(scaling__divisors=[4, 3, 2], scaling__seeds=1)
    before = kept(checkout)
    points = [f"scaling_point {divisor} 0" for divisor in (2, 3, 4)]
    assert jobs(checkout, "--", "scaling") == sorted(
        [*points, "scaling", "scaling_result", "scaling_whole"]
    )
    assert jobs(checkout, "--", "scaling") == []
    found = read_json(checkout.work / "scaling/scaling.json")
    assert found["sizes"] == sorted(found["sizes"]) and len(found["sizes"]) == 4
    # A second seed of the two smallest fractions trains those and no other.
    checkout.configure(scaling__seeds=2)
    assert jobs(checkout, "--", "scaling") == [
        "scaling", "scaling_point 3 1", "scaling_point 4 1", "scaling_result",
    ]  # fmt: skip
    assert kept(checkout) == before
    # The page shows a study once it is there.
    assert jobs(checkout) == ["report"]


def test_the_map_study_is_one_job_on_what_is_there(checkout: Checkout) -> None:
    checkout.configure(map_study__sizes=[64, 256])
    before = kept(checkout)
    assert jobs(checkout, "--", "map_study") == ["map_study", "map_study_result"]
    assert jobs(checkout, "--", "map_study") == []
    sizes = read_json(checkout.work / "map_study/map_study.json")["sizes"]
    assert [entry["size"] for entry in sizes] == [64, 128, 256, 512]
    assert kept(checkout) == before


def test_the_mix_study_takes_a_point_of_the_scaling_curve_that_is_there(checkout: Checkout) -> None:
    checkout.configure(mix_study__divisor=2)
    before = kept(checkout)
    whole = "results/tiny/scaling/points/2-0.json"
    assert jobs(checkout, "--", whole) == ["scaling_point 2 0"]
    without = [f"mix_point {name} {seed}" for name in ("first", "second") for seed in (0, 1)]
    assert jobs(checkout, "--", "mix_study") == sorted(
        ["mix_study", "mix_study_result", *without, "scaling_point 2 1"]
    )
    assert jobs(checkout, "--", "mix_study") == []
    assert kept(checkout) == before
    found = read_json(checkout.work / "mix_study/mix_study.json")
    overall = [e["left_out"] for e in found["effects"] if e["domain"] == "overall"]
    assert overall == ["first", "second"]
    point = read_json(checkout.work / "mix_study/points/first-0.json")
    assert set(point["counts"]["datasets"]) == {"second"}
