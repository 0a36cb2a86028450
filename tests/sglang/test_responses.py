"""The responses phase with a real server: the embedded engine's answers, through any kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from aerie.config import ROOT
from aerie.contracts.responses import read_responses
from aerie.engines.base import Request
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.settings import URLS, VARIABLE, SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.wanted import Wanted
from aerie.responses.run import Job, answer
from aerie.target import Target
from tests.unit.test_responses import make_job, written


@pytest.fixture(scope="module")
def url(
    tiny_target: Target, settings: SglangSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server of the tiny target."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with servers(settings, Wanted.plain(tiny_target), log, own=True) as fleet:
        yield fleet.urls[0]


@pytest.fixture
def given(url: str, settings: SglangSettings, monkeypatch: pytest.MonkeyPatch) -> SglangSettings:
    """The environment of a job that is given that server."""
    monkeypatch.setenv(URLS, url)
    return settings


def greedy_job(tiny_target: Target, folder: Path, engine: str, name: str) -> Job:
    job = make_job(tiny_target, folder, count=24, name=name)
    settings = job.settings.model_copy(update={"temperature": 0.0, "max_new_tokens": 16})
    return replace(job, engine=engine, settings=settings)


def test_answers_are_those_of_the_embedded_engine(
    tiny_target: Target, given: SglangSettings, tmp_path: Path
) -> None:
    job = greedy_job(tiny_target, tmp_path, "sglang", "sglang")
    answer(job)
    embedded = greedy_job(tiny_target, tmp_path, "transformers", "transformers")
    answer(embedded)
    found, expected = (read_responses(one.out.with_suffix(".parquet")) for one in (job, embedded))
    assert len(found) > 24 and {row.finish_reason for row in found} == {"stop", "length"}
    assert found == expected
    for end in (".parquet", ".rejects.parquet"):
        assert written(job)[f"002{end}"] == written(embedded)[f"002{end}"]


def start(job: Job, settings: SglangSettings) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        str(ROOT / "scripts" / "responses.py"),
        f"--prompts={job.prompts}",
        f"--target={job.target}",
        f"--settings={job.settings.as_json()}",
        f"--engine={job.engine}",
        f"--seed={job.seed}",
        f"--journal={job.journal}",
        f"--out={job.out}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: settings.as_json()}
    environment.pop(URLS, None)
    return subprocess.Popen(command, env=environment)


def wait_until(condition: Callable[[], bool], seconds: float = 1200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answered(job: Job) -> int:
    return job.journal.read_bytes().count(b"\n") if job.journal.exists() else 0


def schedulers(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if "scheduler" in child.name()]


def test_kills_of_server_and_job_change_nothing(
    tiny_target: Target, settings: SglangSettings, tmp_path: Path
) -> None:
    undisturbed = greedy_job(tiny_target, tmp_path, "transformers", "undisturbed")
    answer(undisturbed)
    total = answered(undisturbed)

    job = greedy_job(tiny_target, tmp_path, "sglang", "killed")
    process = start(job, settings)
    watched = psutil.Process(process.pid)
    wait_until(lambda: answered(job) >= total // 4)
    (scheduler,) = schedulers(watched)
    scheduler.kill()
    before = answered(job)
    # The server comes back, and the job goes on where it was.
    wait_until(lambda: answered(job) >= max(total // 2, before + settings.concurrency + 1))
    family = watched.children(recursive=True)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = answered(job)
    assert kept < total and not job.out.exists()
    # A server dies with its owner.
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []

    answer(job)
    assert answered(job) == total > kept
    for end in (".parquet", ".rejects.parquet"):
        assert written(job)[f"002{end}"] == written(undisturbed)[f"002{end}"]


def test_the_server_takes_the_whole_context_and_no_more(
    tiny_target: Target, given: SglangSettings, url: str
) -> None:
    longest = tiny_target.max_position - 8
    request = Request(
        prompt_ids=[5] * longest, max_new_tokens=8, temperature=0.0, top_p=1.0, seed=0
    )

    class Given:
        def __init__(self) -> None:
            self.url = url

        def revive(self) -> bool:
            return False

    (reply,) = ask([request], [Given()], given, tiny_target.end_token_ids)
    assert 1 <= len(reply.output_ids) <= 8
