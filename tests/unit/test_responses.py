"""The responses phase: turn by turn, nothing asked twice, the same bytes after any kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aerie.config import ROOT, ResponsesSettings
from aerie.contracts.prompts import Prompt, write_prompts
from aerie.contracts.responses import RESPONSE_REJECTS, read_responses
from aerie.contracts.sidecar import damage, write_sidecar
from aerie.contracts.tables import read_table
from aerie.engines.base import Answer, Engine, Request
from aerie.errors import GateError
from aerie.responses import run as phase
from aerie.responses.run import Job, answer
from aerie.target import Target

if TYPE_CHECKING:
    from aerie.engines.transformers.load import TransformersEngine

QUESTIONS = ["What is an eagle?", "Write a function that sorts a list.", "Hi", "Why a draft?"]
SETTINGS = ResponsesSettings(
    max_new_tokens=32,
    temperature=1.0,
    batch_size=4,
    keep_truncated=True,
    max_rejected_share=1.0,
    supervised_band=(0.0, 1.0),
)


def make_prompts(folder: Path, count: int) -> Path:
    prompts = [
        Prompt(
            id=f"chat-{number:03d}",
            dataset="chat",
            key=str(number),
            rank=number,
            mode="instant",
            system="Be brief." if number % 3 == 0 else None,
            turns=[f"{QUESTIONS[number % 4]} {number}", "And then?", "Why?"][: 1 + number % 3],
            part=2,
        )
        for number in range(count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "002.parquet", prompts)
    provenance = {"dataset": "chat", "part": 2}
    files = [folder / "002.parquet"]
    write_sidecar(folder / "002.json", "prompts", files, {"rows": count}, provenance)
    return folder / "002.json"


def make_job(tiny_target: Target, folder: Path, count: int = 18, name: str = "out") -> Job:
    return Job(
        prompts=make_prompts(folder / "prompts", count),
        target=tiny_target.folder / "target.json",
        settings=SETTINGS,
        engine="transformers",
        seed=7,
        journal=folder / name / "journal.jsonl",
        out=folder / name / "chat" / "002.json",
    )


def written(job: Job) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(job.out.parent.iterdir())}


@pytest.fixture(scope="module")
def tiny_engine(tiny_target: Target) -> "TransformersEngine":
    from aerie.engines.transformers.load import TransformersEngine

    return TransformersEngine(tiny_target, 1)


def test_phase_answers_turn_by_turn(tiny_target: Target, tmp_path: Path) -> None:
    job = make_job(tiny_target, tmp_path)
    answer(job)
    sidecar = json.loads(job.out.read_text())
    rows = read_responses(job.out.with_suffix(".parquet"))
    rejects = read_table(job.out.with_suffix(".rejects.parquet"), RESPONSE_REJECTS)
    assert damage(job.out) == []
    assert sidecar["counts"]["rows"] == len(rows) > 0
    assert sum(sidecar["counts"]["rejects"].values()) == len(rejects)
    assert sidecar["counts"]["output_tokens"] == sum(len(row.output_ids) for row in rows)
    assert sidecar["provenance"]["part"] == 2
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    tokenizer = tiny_target.tokenizer()
    by_id = {row.id: row for row in rows}
    later = [row for row in rows if not row.id.endswith(".0")]
    assert later
    for row in later:
        stem, turn = row.id.rsplit(".", 1)
        before = by_id[f"{stem}.{int(turn) - 1}"]
        assert f"assistant\n{before.text}<|im_end|>" in tokenizer.decode(row.prompt_ids)
    # A conversation stops where an answer is rejected.
    asked = set(by_id) | {row["id"] for row in rejects}
    for lost in rejects:
        stem, turn = lost["id"].rsplit(".", 1)
        assert f"{stem}.{int(turn) + 1}" not in asked


def test_prompts_that_do_not_fit_are_rejected(tiny_target: Target, tmp_path: Path) -> None:
    job = make_job(tiny_target, tmp_path, count=3)
    large = SETTINGS.model_copy(update={"max_new_tokens": 2040, "supervised_band": (0.0, 1.0)})
    with pytest.raises(GateError, match="no answer was accepted"):
        answer(replace(job, settings=large))
    assert not job.out.exists()
    kept = read_table(job.journal.with_suffix(".rejects.parquet"), RESPONSE_REJECTS)
    assert {row["reason"] for row in kept} == {"prompt_too_long"}


def test_rerun_asks_nothing(
    tiny_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tiny_target, tmp_path)
    answer(job)
    first = written(job)
    monkeypatch.setattr(phase, "open_engine", None)
    answer(job)
    assert written(job) == first


class DyingEngine:
    """Dies in the middle of the batch number `last`."""

    def __init__(self, engine: Engine, last: int) -> None:
        self._engine, self._last = engine, last

    def generate(self, batch: list[Request]) -> list[Answer]:
        self._last -= 1
        if self._last < 0:
            raise KeyboardInterrupt
        return self._engine.generate(batch)


def test_interrupted_anywhere_gives_the_same_bytes(
    tiny_target: Target,
    tmp_path: Path,
    tiny_engine: "TransformersEngine",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed = make_job(tiny_target, tmp_path)
    answer(undisturbed)
    for last in (0, 1, 4, 6):
        job = make_job(tiny_target, tmp_path, name=f"cut{last}")
        dying = DyingEngine(tiny_engine, last)
        monkeypatch.setattr(phase, "open_engine", lambda *_, dying=dying: dying)
        with pytest.raises(KeyboardInterrupt):
            answer(job)
        monkeypatch.setattr(phase, "open_engine", lambda *_: tiny_engine)
        answer(job)
        assert written(job) == written(undisturbed)


def test_partly_journalled_batch_is_redone_whole(
    tiny_target: Target, tmp_path: Path, tiny_engine: "TransformersEngine"
) -> None:
    job = make_job(tiny_target, tmp_path)
    answer(job)
    first = written(job)
    lines = job.journal.read_bytes().splitlines(keepends=True)
    job.journal.write_bytes(b"".join(lines[::3]) + lines[1][:20])
    answer(job)
    assert written(job) == first


def start(job: Job) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        str(ROOT / "scripts" / "responses.py"),
        f"--prompts={job.prompts}",
        f"--target={job.target}",
        f"--settings={job.settings.as_json()}",
        f"--seed={job.seed}",
        f"--journal={job.journal}",
        f"--out={job.out}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def lines_of(journal: Path) -> Iterator[int]:
    while True:
        yield journal.read_bytes().count(b"\n") if journal.exists() else 0
        time.sleep(0.02)


def test_killed_process_continues(tiny_target: Target, tmp_path: Path) -> None:
    undisturbed = make_job(tiny_target, tmp_path, count=24)
    answer(undisturbed)
    total = len(undisturbed.journal.read_bytes().splitlines())
    job = make_job(tiny_target, tmp_path, count=24, name="killed")
    process = start(job)
    for lines in lines_of(job.journal):
        if lines >= total // 4 or process.poll() is not None:
            break
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(job.journal.read_bytes().splitlines()) < total
    assert not job.out.exists()
    assert start(job).wait() == 0
    assert written(job) == written(undisturbed)
