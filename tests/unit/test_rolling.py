"""Rolling capture: what is on the disk at a time, in which order, and the draft that comes out."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.codecs import Codec
from aerie.contracts.layers import Layers
from aerie.contracts.responses import Response, write_responses
from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.states import StatesFile, token_bytes
from aerie.contracts.states_subset import is_subset, write_subset
from aerie.errors import AerieError, GateError
from aerie.processes import REQUEUE
from aerie.rolling.children import Children
from aerie.rolling.parts import RollingPart, plan_part, source_of
from aerie.rolling.room import check_room, removed_first
from aerie.rolling.run import Capture, Rolling
from aerie.states.run import capture_part
from aerie.states.settings import StatesSettings, capture_threads
from aerie.target import Target
from aerie.train.checkpoint import resumable_step
from aerie.train.data import Located, locate, split
from aerie.train.schedule import Window, plan_steps, windows_of
from aerie.train.settings import DraftSettings
from tests.unit.train_fixtures import make_trainer, write_samples

BUDGET = 128


@st.composite
def mixes(draw: st.DrawFn) -> list[Located]:
    """Samples of several parts, in the order of a manifest."""
    lengths = st.lists(st.integers(1, 200), min_size=1, max_size=12)
    parts = draw(st.lists(lengths, min_size=1, max_size=8))
    return [
        Located(f"s{part}-{n}.0", "tiny", Path(f"states/tiny/{part:03d}/00000.safetensors"),
                n, rows, rows)
        for part, each in enumerate(parts)
        for n, rows in enumerate(each)
    ]  # fmt: skip


def rows_of(samples: list[Located]) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for sample in samples:
        found[sample.file.parent] = found.get(sample.file.parent, 0) + sample.rows
    return found


@given(mixes(), st.integers(1, 800), st.integers(0, 3), st.integers(1, 3))
def test_every_sample_once_an_epoch_and_windows_within_their_tokens(
    samples: list[Located], shuffle: int, seed: int, group: int
) -> None:
    steps = plan_steps(samples, BUDGET, seed, 2, group, shuffle)
    for epoch in range(2):
        seen = [s for step in steps if step.epoch == epoch for pack in step.packs for s in pack]
        assert sorted(seen, key=samples.index) == samples
    rows, windows = rows_of(samples), windows_of(steps)
    for window in windows:
        assert len(window.parts) == 1 or sum(rows[part] for part in window.parts) <= shuffle
    assert windows[-1].end == len(steps)
    ends = [window.end for window in windows if window.ends_epoch]
    assert [steps[end - 1].epoch for end in ends] == [0, 1] and ends[-1] == len(steps)
    start = 0
    for window in windows:
        own = {s.file.parent for step in steps[start : window.end] for p in step.packs for s in p}
        assert own == window.parts
        start = window.end


@given(mixes(), st.integers(0, 3))
def test_a_window_of_everything_is_the_shuffle_of_everything(
    samples: list[Located], seed: int
) -> None:
    assert plan_steps(samples, BUDGET, seed, 2, 2, sum(rows_of(samples).values())) == plan_steps(
        samples, BUDGET, seed, 2, 2
    )


@given(mixes(), st.integers(1, 800), st.integers(0, 400), st.data())
def test_never_above_the_budget_and_always_what_a_window_needs(
    samples: list[Located], shuffle: int, spare: int, data: st.DataObject
) -> None:
    """The whole run in numbers: a run that begins with any states on the disk."""
    sizes = {part: 10 * rows for part, rows in rows_of(samples).items()}
    windows = windows_of(plan_steps(samples, BUDGET, 0, 3, 1, shuffle))
    largest = max(sum(sizes[part] for part in window.parts) for window in windows)
    room = largest + spare
    check_room(windows, sizes, 7, room + 7)
    with pytest.raises(GateError, match=f"rolling.budget_bytes: {largest + 7}"):
        check_room(windows, sizes, 7, largest + 6)
    held = dict(data.draw(st.lists(st.sampled_from(sorted(sizes.items())), unique=True)))
    held[Path("states/tiny/999")] = data.draw(st.integers(0, 1000))
    captures = 0
    for number, window in enumerate(windows):
        wanted = {part: sizes[part] for part in window.parts}
        upcoming = [each.parts for each in windows[number:]]
        removed = removed_first(held, wanted, room, upcoming)
        assert not set(removed) & window.parts
        for part in removed:
            del held[part]
        captures += len(wanted.keys() - held.keys())
        held |= wanted
        assert sum(held.values()) <= room
    # Nothing is captured twice that had room.
    if room >= sum(sizes.values()) + 1000:
        assert captures <= len(sizes)


def test_what_is_needed_last_is_removed_first_and_no_more_than_must() -> None:
    a, b, c, d, stale = (Path(name) for name in ("a", "b", "c", "d", "stale"))
    held = {a: 10, b: 10, c: 10, stale: 1}
    upcoming = [frozenset({d}), frozenset({b}), frozenset({a}), frozenset({c})]
    assert removed_first(held, {d: 10}, 41, upcoming) == []
    assert removed_first(held, {d: 10}, 40, upcoming) == [stale]
    assert removed_first(held, {d: 10}, 39, upcoming) == [stale, c]
    assert removed_first(held, {d: 10}, 10, upcoming) == [stale, c, a, b]


def test_a_part_that_is_alone_too_large_is_refused_with_what_would_do() -> None:
    part = Path("states/tiny/000")
    window = Window(frozenset({part}), 1, ends_epoch=True)
    with pytest.raises(GateError) as raised:
        check_room([window], {part: 100}, 5, 104)
    assert "100 bytes of the largest window, 5 of samples held out" in str(raised.value)
    assert "rolling.budget_bytes: 105" in str(raised.value)


@pytest.mark.parametrize("codec", ["bf16", "fp8"])
def test_samples_that_stay_are_the_bytes_that_were_stored(tmp_path: Path, codec: Codec) -> None:
    file = write_samples(tmp_path, 6, codec)[0].file
    out = tmp_path / "held/00000.safetensors"
    write_subset(file, [1, 4], out)
    whole, subset = StatesFile(file), StatesFile(out)
    assert len(subset) == 2 and not subset.damaged_tensors()
    for number, place in enumerate([1, 4]):
        for mine, theirs in zip(
            vars(subset.stored(number)).values(), vars(whole.stored(place)).values(), strict=True
        ):
            assert (mine is None) == (theirs is None)
            assert mine is None or (mine.dtype == theirs.dtype and bool((mine == theirs).all()))
    key = whole.metadata["key"]
    assert is_subset(out, key, [1, 4])
    assert not is_subset(out, key, [1, 3]) and not is_subset(out, "another", [1, 4])
    with out.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)[0]
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last ^ 1]))
    assert not is_subset(out, key, [1, 4])
    out.unlink()
    assert not is_subset(out, key, [1, 4])


@pytest.mark.parametrize("codec", ["bf16", "fp8"])
def test_samples_are_known_before_they_are_captured(
    tmp_path: Path, tiny_target: Target, codec: Codec
) -> None:
    """Where a training with all states finds them, and no byte more than was foreseen."""
    shapes = [(4, 1), (5, 2), (0, 9), (1, 3), (1, 2), (0, 2), *((3 + n, 2 + n) for n in range(14))]
    rows = [
        Response(f"p{n}.0", "d", 0, "instant", list(range(3, 3 + prompt)),
                 list(range(9, 9 + answer)), "stop", "", "")
        for n, (prompt, answer) in enumerate(shapes)
    ]  # fmt: skip
    table = tmp_path / "responses/d/000.parquet"
    write_responses(table, rows)
    sidecar = table.with_suffix(".json")
    write_sidecar(sidecar, "responses", [table], {}, {})
    each = token_bytes(3 * tiny_target.hidden_size, tiny_target.hidden_size, codec)
    settings = StatesSettings(codec=codec).model_copy(update={"file_bytes": 60 * each})
    states, kept = tmp_path / "states", tmp_path / "kept"
    part = plan_part(sidecar, tiny_target, settings, 0.3, states, kept)

    target = tiny_target.folder / "target.json"
    capture_part(sidecar, target, settings, "transformers", part.index, greedy=False)
    assert sum(file.stat().st_size for file in part.folder.iterdir()) <= part.bytes
    found = locate([part.index])
    training, held_out = split(found, 0.3)
    planned, planned_held_out = split(part.samples, 0.3)
    assert [sample.id for sample in part.samples] == [sample.id for sample in found]
    assert planned == training
    for each_kept in part.held_out:
        assert not each_kept.is_there
        each_kept.write()
        assert each_kept.is_there
    assert sum(file.stat().st_size for file in kept.glob("*/*/*")) <= part.held_out_bytes
    for mine, theirs in zip(planned_held_out, held_out, strict=True):
        assert replace(mine, file=theirs.file, index=theirs.index) == theirs
        one, other = (StatesFile(each.file).stored(each.index) for each in (mine, theirs))
        assert torch.equal(one.aux, other.aux) and torch.equal(one.final(), other.final())
    assert source_of([part]).samples == list(part.samples)


def test_a_training_in_stretches_is_one_training(tmp_path: Path) -> None:
    samples = write_samples(tmp_path, 20)
    whole = make_trainer(tmp_path / "whole", samples)
    assert whole.run()
    steps = len(whole.schedule)
    for until in (2, 4, steps):
        stretch = make_trainer(tmp_path / "stretches", samples)
        contract = stretch.state["contract"]
        assert stretch.run(until) == (until == steps)
        assert resumable_step(stretch.checkpoints, contract) == until
    weights = whole.layout.weights.named
    for name, tensor in stretch.layout.weights.named.items():
        assert torch.equal(tensor, weights[name])
    assert stretch.state["records"] == whole.state["records"]
    assert stretch.state["epochs"] == whole.state["epochs"]
    assert resumable_step(stretch.checkpoints, {"another": "run"}) == 0


class Recorder(Children):
    """Keeps the command that it is given instead of running it."""

    def run(
        self, what: str, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.words = list(words)


@pytest.mark.parametrize(("engine", "threads"), [("transformers", "1"), ("sglang", "8")])
def test_a_capture_has_the_threads_of_its_rule(
    engine: str, threads: str, tmp_path: Path, tiny_target: Target
) -> None:
    """The engine promises the same states for the same threads alone."""
    part = RollingPart(tmp_path, tmp_path, (), (), (), 0, 0, Layers((2, 4, 5)))
    rolling = Rolling(
        [], tmp_path, tmp_path, DraftSettings(), StatesSettings(), engine, True, 16, tmp_path,
        tmp_path, tmp_path, tmp_path, tmp_path, "python", tmp_path, tmp_path,
    )  # fmt: skip
    recorder = Recorder()
    Capture(rolling, tiny_target, part, recorder).part(part)
    assert recorder.words[recorder.words.index("--threads") + 1] == threads
    assert capture_threads(engine) == int(threads)


def test_a_command_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    with Children() as children:
        children.run("the capture of a/0", [sys.executable, "-c", ""], os.environ, tmp_path / "log")
        words = [sys.executable, "-c", "raise SystemExit(3)"]
        with pytest.raises(AerieError, match=r"the capture of a/0 failed[\s\S]*status 3[\s\S]*log"):
            children.run("the capture of a/0", words, os.environ, tmp_path / "log")


def test_a_run_that_is_told_to_end_passes_it_on(tmp_path: Path) -> None:
    """The child writes a last word on SIGTERM, as a training writes its checkpoint."""
    child = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        f"    pathlib.Path({str(tmp_path / 'last')!r}).touch(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    parent = (
        "import os, pathlib, sys\n"
        "from aerie.rolling.children import Children\n"
        "with Children() as children:\n"
        f"    words = [sys.executable, '-c', {child!r}]\n"
        "    children.run('it', words, os.environ, pathlib.Path('x'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == REQUEUE
    assert (tmp_path / "last").exists()
