"""A part of states: what is right is kept, what is not is written again, the same bytes always."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import aerie.engines
import aerie.states.run
from aerie.contracts.codecs import Codec
from aerie.contracts.layers import Layers
from aerie.contracts.responses import AnswerSource, Response, write_responses
from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.states import Sample, StatesFile, token_bytes
from aerie.contracts.states_index import damage
from aerie.contracts.teacher import encode
from aerie.engines.base import Captured, Engine, Request
from aerie.engines.transformers.load import TransformersEngine
from aerie.errors import ConfigError, ContractError, GateError
from aerie.files import digest_file, read_json
from aerie.gates.states import check_probe
from aerie.states.run import capture_part
from aerie.states.settings import StatesSettings, TeacherSettings
from aerie.target import Target
from aerie.target_weights import read_head
from tests.unit.states_fixtures import rounded

TOKENS_PER_FILE = 100


class Watched:
    """The tiny target in the transformers engine, counting what is asked of it."""

    def __init__(self, target: Target) -> None:
        self.engine = TransformersEngine(target, 1)
        self.opened = 0
        self.batches: list[list[int]] = []
        self.fail_after: int | None = None

    def open(self, name: str, target: Target, threads: int) -> Engine:
        assert (name, threads) == ("transformers", 1)
        self.opened += 1
        return self

    def generate(self, batch: Sequence[Request]) -> Any:
        return self.engine.generate(batch)

    def capture(self, batch: Sequence[Sequence[int]], layers: Layers) -> list[Captured]:
        if self.fail_after is not None and len(self.batches) >= self.fail_after:
            raise KeyboardInterrupt
        self.batches.append([len(ids) for ids in batch])
        return self.engine.capture(batch, layers)

    @property
    def sequences(self) -> int:
        return sum(map(len, self.batches))


@pytest.fixture
def watched(tiny_target: Target, monkeypatch: pytest.MonkeyPatch) -> Watched:
    engine = Watched(tiny_target)
    monkeypatch.setattr(aerie.engines, "open_engine", engine.open)
    return engine


@pytest.fixture(scope="module")
def answered(tiny_target: Target) -> list[Response]:
    """Twenty greedy answers of different lengths."""
    engine = TransformersEngine(tiny_target, 1)
    prompts = [[3 + (7 * row + at) % 500 for at in range(4 + row % 9)] for row in range(20)]
    requests = [Request(ids, 4 + row % 13, 0.0, 1.0, row) for row, ids in enumerate(prompts)]
    answers = engine.generate(requests)
    return [
        Response(
            f"p{row}.0", "d", 0, "instant", ids, answer.output_ids, answer.finish_reason, "", ""
        )
        for row, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
    ]


def write_part(work: Path, responses: list[Response]) -> Path:
    folder = work / "responses" / "d"
    table, sidecar = folder / "000.parquet", folder / "000.json"
    write_responses(table, responses)
    write_sidecar(sidecar, "responses", [table], {}, {})
    return sidecar


def run(
    work: Path,
    target: Target,
    responses: list[Response],
    greedy: bool = True,
    codec: Codec = "bf16",
) -> Path:
    settings = StatesSettings(batch_tokens=64, codec=codec)
    each = token_bytes(3 * target.hidden_size, target.hidden_size, codec)
    small = settings.model_copy(update={"file_bytes": TOKENS_PER_FILE * each})
    out = work / "states" / "d" / "000" / "index.json"
    sidecar = write_part(work, responses)
    capture_part(sidecar, target.folder / "target.json", small, "transformers", out, greedy=greedy)
    return out


def test_another_codec_is_another_part(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    exact = [*states_of(run(tmp_path, tiny_target, answered))]
    index = run(tmp_path, tiny_target, answered, codec="fp8")
    assert watched.sequences == 2 * len(answered)
    assert read_json(index)["provenance"]["codec"] == "fp8"
    for before, after in zip(exact, states_of(index), strict=True):
        kept = rounded(before, tiny_target.hidden_size)
        assert torch.equal(kept.aux, after.aux)
        assert torch.equal(kept.final(), after.final())


def test_the_codec_teacher_keeps_what_the_final_states_say(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    exact = [*states_of(run(tmp_path, tiny_target, answered))]
    chosen = StatesSettings(codec="teacher", teacher=TeacherSettings(k=20, aux="bf16"))
    for greedy in (True, False):
        index = capture(tmp_path / str(greedy), tiny_target, answered, chosen, greedy)
        assert read_json(index)["provenance"]["teacher"] == {"k": 20, "aux": "bf16"}
        head = read_head(tiny_target)
        for before, after in zip(exact, states_of(index), strict=True):
            assert after.last is None
            assert torch.equal(before.aux, after.aux)
            assert after.top_ids is not None and after.tail is not None
            logits = before.final().float() @ head.float().t()
            assert torch.equal(after.top_ids[:, 0].long(), logits.argmax(1))
            kept = logits.softmax(1).gather(1, after.top_ids.long()).sum(1)
            torch.testing.assert_close(1 - kept, after.tail[:, 0], rtol=1e-4, atol=1e-5)
    asked = watched.sequences
    (index.parent / "index.json").unlink()
    capture(tmp_path / "False", tiny_target, answered, chosen, False)
    assert watched.sequences == asked
    other = chosen.model_copy(update={"teacher": TeacherSettings(k=21, aux="bf16")})
    capture(tmp_path / "False", tiny_target, answered, other, False)
    assert watched.sequences == asked + len(answered)


def test_the_codec_teacher_is_computed_from_what_a_server_hands_over(
    tmp_path: Path,
    tiny_target: Target,
    answered: list[Response],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = TransformersEngine(tiny_target, 1)
    given: list[Captured] = []

    class Stream:
        def states(self, sequences: Sequence[list[int]]) -> Iterator[Captured]:
            for ids in sequences:
                given.append(engine.capture([ids], Layers((2, 4, 5)))[0])
                yield given[-1]

    monkeypatch.setattr(aerie.engines, "open_capture", lambda *given: nullcontext(Stream()))
    out = tmp_path / "states/d/000/index.json"
    chosen = StatesSettings(codec="teacher", teacher=TeacherSettings(k=20))
    sidecar = tiny_target.folder / "target.json"
    capture_part(write_part(tmp_path, answered), sidecar, chosen, "sglang", out, greedy=True)
    head = read_head(tiny_target)
    for states, sample in zip(given, states_of(out), strict=True):
        kept = encode(states.last, head, 20)
        for name, expected in zip(("top_ids", "top_logprobs", "tail"), kept, strict=True):
            assert torch.equal(getattr(sample, name), expected), name


def test_more_tokens_than_the_target_has_are_refused(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    many = StatesSettings(codec="teacher", teacher=TeacherSettings(k=tiny_target.vocab_size + 1))
    with pytest.raises(ConfigError, match=r"states\.teacher\.k"):
        capture(tmp_path, tiny_target, answered, many, True)
    assert watched.opened == 0


def capture(
    work: Path, target: Target, responses: list[Response], settings: StatesSettings, greedy: bool
) -> Path:
    """As `run`, with the settings of a codec; files are cut at the same tokens."""
    out, sidecar = work / "states/d/000/index.json", write_part(work, responses)
    hidden, teacher = target.hidden_size, settings.teacher.stored()
    each = token_bytes(3 * hidden, hidden, settings.codec, teacher)
    small = settings.model_copy(
        update={"file_bytes": TOKENS_PER_FILE * each, "batch_tokens": 64}
    )  # fmt: skip
    capture_part(sidecar, target.folder / "target.json", small, "transformers", out, greedy=greedy)
    return out


def states_of(index: Path) -> Iterator[Sample]:
    for name in read_json(index)["files"]:
        yield from StatesFile(index.parent / name)


def digests(index: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in sorted(index.parent.iterdir())}


def read(index: Path) -> Iterator[tuple[str, list[int], list[int]]]:
    for name, entry in read_json(index)["files"].items():
        for identity, sample in zip(entry["samples"], StatesFile(index.parent / name), strict=True):
            yield identity, sample.token_ids.tolist(), sample.loss_mask.tolist()


def test_samples_are_stored_in_order(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    expected = [
        (
            each.id,
            each.prompt_ids + each.output_ids,
            [0] * len(each.prompt_ids) + [1] * len(each.output_ids),
        )
        for each in answered
    ]
    assert list(read(index)) == expected
    content = read_json(index)
    assert len(content["files"]) > 2
    assert damage(index) == []
    assert content["counts"] == {
        "samples": 20,
        "tokens": sum(len(ids) for _, ids, _ in expected),
        "supervised": sum(sum(mask) for *_, mask in expected),
        "bytes": sum(entry["bytes"] for entry in content["files"].values()),
    }
    assert content["provenance"]["target"] == tiny_target.revision
    assert content["layers"]["hf_hidden_states"] == [2, 4, 5]
    for name in content["files"]:
        assert StatesFile(index.parent / name).offsets[-1] <= TOKENS_PER_FILE


def test_states_are_those_of_each_sample_alone(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    samples = [
        sample for name in read_json(index)["files"] for sample in StatesFile(index.parent / name)
    ]
    for sample in samples[::5]:
        (alone,) = watched.engine.capture([sample.token_ids.tolist()], Layers((2, 4, 5)))
        torch.testing.assert_close(sample.aux, alone.aux, rtol=0.02, atol=0.02)
        torch.testing.assert_close(sample.last, alone.last, rtol=0.02, atol=0.02)


def test_batches_hold_the_budget_and_like_lengths(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    run(tmp_path, tiny_target, answered)
    assert max(len(batch) for batch in watched.batches) > 1
    for batch in watched.batches:
        assert batch == sorted(batch, reverse=True)
        assert max(batch) * len(batch) <= 64


def test_a_second_run_computes_nothing(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    before = digests(index)
    index.unlink()
    run(tmp_path, tiny_target, answered)
    assert watched.opened == 1
    assert digests(index) == before


@pytest.mark.parametrize("batches", [0, 1, 3, 5])
def test_interrupted_anywhere_ends_the_same(
    tmp_path: Path,
    tiny_target: Target,
    watched: Watched,
    answered: list[Response],
    batches: int,
) -> None:
    whole = digests(run(tmp_path / "whole", tiny_target, answered))
    watched.batches.clear()
    watched.fail_after = batches
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", tiny_target, answered)
    folder = tmp_path / "cut" / "states" / "d" / "000"
    assert not (folder / "index.json").exists()
    # What a kill that nothing can catch would leave.
    (folder / ".00001.safetensors.tmp").write_bytes(b"half")
    watched.fail_after = None
    index = run(tmp_path / "cut", tiny_target, answered)
    assert digests(index) == whole


def test_only_what_is_damaged_is_written_again(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    before = digests(index)
    broken = index.parent / "00001.safetensors"
    content = bytearray(broken.read_bytes())
    content[-1] ^= 1
    broken.write_bytes(content)
    expected = len(read_json(index)["files"][broken.name]["samples"])
    stays = (index.parent / "00000.safetensors").stat().st_mtime_ns
    watched.batches.clear()
    run(tmp_path, tiny_target, answered)
    assert watched.sequences == expected
    assert digests(index) == before
    assert (index.parent / "00000.safetensors").stat().st_mtime_ns == stays


def test_files_that_no_longer_belong_are_removed(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    shorter = run(tmp_path, tiny_target, answered[:10])
    assert watched.sequences < 2 * len(answered)
    assert set(digests(shorter)) == {*read_json(index)["files"], "index.json"}
    assert [identity for identity, *_ in read(shorter)] == [each.id for each in answered[:10]]


def test_a_part_without_responses(tmp_path: Path, tiny_target: Target, watched: Watched) -> None:
    index = run(tmp_path, tiny_target, [])
    assert read_json(index)["files"] == {}
    assert read_json(index)["counts"]["tokens"] == 0
    assert watched.opened == 0


def test_answers_of_another_model_are_stopped(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    wrong = [
        Response(**{**vars(each), "output_ids": [(token + 1) % 512 for token in each.output_ids]})
        for each in answered
    ]
    with pytest.raises(GateError, match="does not reproduce"):
        run(tmp_path, tiny_target, wrong)
    assert list((tmp_path / "states" / "d" / "000").iterdir()) == []
    run(tmp_path, tiny_target, wrong, greedy=False)


def test_only_answers_that_were_sampled_here_are_probed(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    """Nothing says that the answers of a dataset were greedy."""
    other = [
        replace(
            each,
            output_ids=[(token + 1) % 512 for token in each.output_ids],
            source=AnswerSource.DATASET,
        )
        for each in answered
    ]
    run(tmp_path / "mixed", tiny_target, [*other[:10], *answered[10:]])
    run(tmp_path / "other", tiny_target, other)
    wrong = [replace(each, source=AnswerSource.TARGET) for each in other[:10]]
    with pytest.raises(GateError, match="does not reproduce"):
        run(tmp_path / "wrong", tiny_target, [*wrong, *other[10:]])


def test_the_probe_stays_small_however_many_answers_a_file_has(
    tmp_path: Path,
    tiny_target: Target,
    watched: Watched,
    answered: list[Response],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probed: list[int] = []
    plain = check_probe

    def counting(head: torch.Tensor, last: torch.Tensor, *others: Any) -> float:
        probed.append(len(last))
        return plain(head, last, *others)

    monkeypatch.setattr(aerie.states.run, "check_probe", counting)
    monkeypatch.setattr(aerie.states.run, "_PROBE_ROWS", 2)
    # Every other one is a dataset's, and is no reason to look at fewer of the rest.
    mixed = [
        replace(each, source=AnswerSource.DATASET) if n % 2 == 0 else each
        for n, each in enumerate(answered)
    ]
    for number, responses in enumerate((answered, mixed)):
        index = run(tmp_path / str(number), tiny_target, responses)
        assert len(probed) == len(read_json(index)["files"]) and min(probed) >= 1
        assert max(probed) <= 2
        probed.clear()


def test_beside_a_server_one_thread_computes(
    tmp_path: Path,
    tiny_target: Target,
    answered: list[Response],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has the cores: threads that wait for each other under load cost a factor of 5."""
    engine, threads = TransformersEngine(tiny_target, 1), list[int]()

    class Stream:
        def states(self, sequences: Sequence[Sequence[int]]) -> Iterator[Captured]:
            for ids in sequences:
                threads.append(torch.get_num_threads())
                yield engine.capture([ids], Layers((2, 4, 5)))[0]

    monkeypatch.setattr(aerie.engines, "open_capture", lambda *given: nullcontext(Stream()))
    out, before = tmp_path / "states/d/000/index.json", torch.get_num_threads()
    torch.set_num_threads(2)
    sidecar = tiny_target.folder / "target.json"
    capture_part(
        write_part(tmp_path, answered), sidecar, StatesSettings(), "sglang", out, greedy=True,
        threads=2,
    )  # fmt: skip
    assert set(threads) == {1} and torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_the_final_state_alone_is_stopped(
    tmp_path: Path,
    tiny_target: Target,
    watched: Watched,
    answered: list[Response],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def final_only(batch: Sequence[Sequence[int]], layers: Layers) -> list[Captured]:
        captured = watched.engine.capture(batch, layers)
        return [Captured(states.last, states.last) for states in captured]

    monkeypatch.setattr(watched, "capture", final_only)
    with pytest.raises(GateError, match="--speculative-algorithm EAGLE`"):
        run(tmp_path, tiny_target, answered)


def test_damaged_responses_are_an_error(
    tmp_path: Path, tiny_target: Target, watched: Watched, answered: list[Response]
) -> None:
    index = run(tmp_path, tiny_target, answered)
    sidecar = tmp_path / "responses" / "d" / "000.json"
    sidecar.with_suffix(".parquet").write_bytes(b"PAR1")
    with pytest.raises(ContractError, match="does not fit the files beside it"):
        capture_part(
            sidecar,
            tiny_target.folder / "target.json",
            StatesSettings(),
            "transformers",
            index,
            greedy=True,
        )
