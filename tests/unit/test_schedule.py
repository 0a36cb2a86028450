"""The simulated schedule keeps what holds for every schedule that leaves no host idle."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.config import load
from benchmarks.dag.schedule import Job, jobs_of, longest_chain, simulate

ROOT = Path(__file__).resolve().parents[2]


@st.composite
def graphs(draw: st.DrawFn) -> list[Job]:
    """Jobs on hosts with GPUs, each after some of the earlier ones."""
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, 30))):
        after = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        names = tuple(f"j {index}" for index in sorted(after))
        jobs.append(Job(f"j {number}", draw(st.floats(1, 1000)), names, gpu=True))
    return jobs


@given(graphs(), st.integers(1, 8))
def test_length_is_within_grahams_bounds(jobs: list[Job], hosts: int) -> None:
    """R. L. Graham, Bounds on multiprocessing timing anomalies (1969)."""
    work, chain = sum(job.seconds for job in jobs), longest_chain(jobs)
    seconds = simulate(jobs, hosts).hours * 3600
    assert seconds >= max(chain, work / hosts) * (1 - 1e-9)
    assert seconds <= (work / hosts + chain * (1 - 1 / hosts)) * (1 + 1e-9)


def test_clients_take_no_host() -> None:
    jobs = [Job("a", 3600, gpu=True), Job("b", 3600), Job("c", 3600, ("a",), gpu=True)]
    found = simulate(jobs, 1)
    assert found.hours == pytest.approx(2)
    assert found.busy == pytest.approx(1)


def test_jobs_of_the_production_configuration() -> None:
    config = load(ROOT / "config.yaml")
    jobs, sources = jobs_of(config, 900, 7)
    parts = [job for job in jobs if job.name.startswith("responses")]
    assert len([job for job in jobs if job.name.startswith("states")]) == len(parts)
    assert sum(dataset.take for dataset in config.datasets.values()) <= 2000 * len(parts)
    assert set(sources) == {"responses", "states", "draft"}
    one, many = simulate(jobs, 1), simulate(jobs, 16)
    assert one.busy > 0.99
    assert many.hours >= many.bound
