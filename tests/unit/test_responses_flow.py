"""Responses by an engine that streams: the same files in whatever order answers come."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.contracts.responses import RESPONSE_REJECTS, read_responses
from aerie.contracts.sidecar import damage
from aerie.contracts.tables import read_table
from aerie.engines.sglang import client as client_module
from aerie.engines.sglang.stream import SglangStream
from aerie.errors import EngineError, GateError
from aerie.files import digest_json
from aerie.responses import run as phase
from aerie.responses.run import Job, answer
from aerie.target import Target
from tests.conftest import TINY_ANSWER_CHARACTERS
from tests.generate_double import Body, Fault, GenerateDouble
from tests.unit.test_responses import make_job, written

Answers = Callable[[Body], list[int]]


@dataclass(frozen=True)
class Client:
    concurrency: int = 6
    request_timeout_s: float = 120.0
    tries: int = 5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_WAIT", 0.001)


@pytest.fixture(scope="module")
def answers(tiny_target: Target) -> Answers:
    """What the double says: characters that the prompt and the seed choose, most with an end."""
    tokenizer = tiny_target.tokenizer()
    vocabulary = tokenizer.get_vocab()
    letters = [vocabulary[letter] for letter in TINY_ANSWER_CHARACTERS]

    def say(body: Body) -> list[int]:
        sampling = body["sampling_params"]
        chance = random.Random(digest_json([body["input_ids"], sampling.get("sampling_seed")]))
        count = chance.randrange(1, 2 * sampling["max_new_tokens"])
        chosen = chance.choices(letters, k=count)
        return [*chosen, *tiny_target.end_token_ids[:1]]

    return say


@contextmanager
def serving(double: GenerateDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def opened(name: str, target: Target, log: Path) -> Iterator[SglangStream]:
        assert name == "sglang"
        yield SglangStream([double], Client(), target.end_token_ids)

    with monkeypatch.context() as patched, double:
        patched.setattr(phase, "open_stream", opened)
        yield


def sglang_job(tiny_target: Target, folder: Path, name: str = "out") -> Job:
    return replace(make_job(tiny_target, folder, name=name), engine="sglang")


@pytest.fixture(scope="module")
def undisturbed(
    tiny_target: Target, answers: Answers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Job, int]:
    """A job that was answered, and how many requests that took."""
    job = sglang_job(tiny_target, tmp_path_factory.mktemp("undisturbed"))
    double = GenerateDouble(answers)
    with pytest.MonkeyPatch.context() as monkeypatch, serving(double, monkeypatch):
        answer(job)
    return job, len(double.seen.bodies)


def test_every_turn_follows_its_own_history(
    tiny_target: Target, undisturbed: tuple[Job, int]
) -> None:
    job, requests = undisturbed
    assert damage(job.out) == []
    sidecar = json.loads(job.out.read_text())
    assert sidecar["provenance"]["engine"] == "sglang"
    rows = read_responses(job.out.with_suffix(".parquet"))
    rejects = read_table(job.out.with_suffix(".rejects.parquet"), RESPONSE_REJECTS)
    assert len(rows) + len(rejects) == requests
    assert len(job.journal.read_bytes().splitlines()) == requests
    by_id = {row.id: row for row in rows}
    later = [row for row in rows if not row.id.endswith(".0")]
    assert any(row.id.endswith(".2") for row in later)
    tokenizer = tiny_target.tokenizer()
    for row in later:
        stem, turn = row.id.rsplit(".", 1)
        before = by_id[f"{stem}.{int(turn) - 1}"]
        assert f"assistant\n{before.text}<|im_end|>" in tokenizer.decode(row.prompt_ids)
    lost = {row["id"].rsplit(".", 1)[0] for row in rejects}
    assert len(lost) == len(rejects)


FAULTS: list[int | Fault] = [503, "drop", "die", "wrong_id", "abort"]


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.floats(0, 0.3))
def test_files_depend_neither_on_order_nor_on_faults(
    tiny_target: Target,
    answers: Answers,
    undisturbed: tuple[Job, int],
    tmp_path_factory: pytest.TempPathFactory,
    order: int,
    share: float,
) -> None:
    def fault(name: str, attempt: int) -> int | Fault | None:
        chance = random.Random(f"{order} {name} {attempt}")
        # A fifth failure would give the request up, and so would a death that it is alone with: it
        # may be asked alone after two deaths, its own or others' while it waited.
        faults = FAULTS if attempt < 3 else [each for each in FAULTS if each != "die"]
        return chance.choice(faults) if attempt < 4 and chance.random() < share else None

    def delay(name: str, attempt: int) -> float:
        return random.Random(f"{name} {order} {attempt}").random() / 100

    job = sglang_job(tiny_target, tmp_path_factory.mktemp("faults"))
    double = GenerateDouble(answers, fault, delay)
    with pytest.MonkeyPatch.context() as monkeypatch, serving(double, monkeypatch):
        answer(job)
    assert written(job) == written(undisturbed[0])
    assert len(job.journal.read_bytes().splitlines()) == undisturbed[1]


def test_interrupted_anywhere_gives_the_same_files(
    tiny_target: Target,
    answers: Answers,
    undisturbed: tuple[Job, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, requests = undisturbed
    for last in (0, 3, 11, 20):
        job = sglang_job(tiny_target, tmp_path, name=f"cut{last}")
        dying = Dying(answers, last)
        with serving(dying, monkeypatch), pytest.raises(EngineError, match="out of memory"):
            answer(job)
        kept = len(job.journal.read_bytes().splitlines())
        # What was under way when the connections broke may be lost.
        assert kept >= last - Client.concurrency and not job.out.exists()
        again = GenerateDouble(answers)
        with serving(again, monkeypatch):
            answer(job)
        assert written(job) == written(whole)
        # Nothing that was paid for is asked again.
        assert len(again.seen.bodies) == requests - kept


class Dying(GenerateDouble):
    """Dies after `last` answers and does not come back."""

    def __init__(self, answers: Answers, last: int) -> None:
        super().__init__(answers, lambda *_: "die" if len(self.seen.answered) >= last else None)

    def revive(self) -> bool:
        raise EngineError("the server died", saw="out of memory")


def test_half_a_journal_is_enough(
    tiny_target: Target,
    answers: Answers,
    undisturbed: tuple[Job, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, requests = undisturbed
    job = sglang_job(tiny_target, tmp_path)
    lines = whole.journal.read_bytes().splitlines(keepends=True)
    job.journal.parent.mkdir(parents=True)
    job.journal.write_bytes(b"".join(lines[1::2]) + lines[0][:20])
    double = GenerateDouble(answers)
    with serving(double, monkeypatch):
        answer(job)
    assert written(job) == written(whole)
    assert len(double.seen.bodies) == requests - len(lines[1::2])


def test_no_server_is_opened_for_nothing(
    tiny_target: Target, undisturbed: tuple[Job, int], tmp_path: Path
) -> None:
    whole, _ = undisturbed
    job = sglang_job(tiny_target, tmp_path)
    job.journal.parent.mkdir(parents=True)
    job.journal.write_bytes(whole.journal.read_bytes())
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(phase, "open_stream", None)
        answer(job)
    assert written(job) == written(whole)


def test_a_refused_request_is_a_reject_and_not_journalled(
    tiny_target: Target,
    answers: Answers,
    undisturbed: tuple[Job, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = sglang_job(tiny_target, tmp_path)
    double = GenerateDouble(answers, lambda name, _: 400 if name == "chat-004.0" else None)
    with serving(double, monkeypatch):
        answer(job)
    rejects = read_table(job.out.with_suffix(".rejects.parquet"), RESPONSE_REJECTS)
    (refused,) = [row for row in rejects if row["reason"] == "request_failed"]
    assert refused["id"] == "chat-004.0" and refused["output_ids"] == []
    assert refused["request_digest"] not in job.journal.read_text()
    assert json.loads(job.out.read_text())["counts"]["rejects"]["request_failed"] == 1
    strict = job.settings.model_copy(update={"max_rejected_share": 0.0})
    with serving(GenerateDouble(answers, double.fault), monkeypatch), pytest.raises(GateError):
        answer(replace(job, settings=strict))


def test_identical_requests_have_one_answer(
    tiny_target: Target, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = sglang_job(tiny_target, tmp_path)
    greedy = replace(job, settings=job.settings.model_copy(update={"temperature": 0.0}))
    with serving(GenerateDouble(answers, delay=lambda *_: 0.002), monkeypatch):
        answer(greedy)
    rows = read_responses(job.out.with_suffix(".parquet"))
    by_digest: dict[str, set[tuple[int, ...]]] = {}
    for row in rows:
        by_digest.setdefault(row.request_digest, set()).add(tuple(row.output_ids))
    assert all(len(found) == 1 for found in by_digest.values())
