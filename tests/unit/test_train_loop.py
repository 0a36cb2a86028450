"""The training loop: what it skips, where it stops, and that parts and ranks change nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from aerie.contracts.states import StatesFile
from aerie.errors import ConfigError, ContractError, DataError, EngineError
from aerie.train.checkpoint import load_checkpoint
from aerie.train.data import Located, locate
from aerie.train.loader import Loader
from aerie.train.packing import Pack
from aerie.train.ranks import join
from aerie.train.schedule import plan_steps
from aerie.train.stop import Preempted
from aerie.train.trainer import Trainer
from tests.unit.train_fixtures import (
    ALONE,
    CONFIG,
    make_trainer,
    write_samples,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def samples(tmp_path: Path) -> list[Located]:
    return write_samples(tmp_path)


def test_a_run_learns_and_keeps_its_last_checkpoints(
    samples: list[Located], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, samples, epochs=4)
    trainer.run()
    losses = [record["loss"] for record in trainer.state["records"]]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert trainer.state["epochs"][-1]["overall"]["accept_length"] > 1.5
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert len(kept) in (3, 4) and kept[-1] == f"step-{len(trainer.schedule):06d}"


def test_a_step_that_is_not_finite_is_skipped_counted_and_named(
    samples: list[Located], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    trainer = make_trainer(tmp_path, samples)
    spoil(monkeypatch, {2})
    with caplog.at_level("WARNING", logger="aerie"):
        trainer.run()
    assert trainer.state["skipped"] == 1
    assert float(trainer.layout.optimizer.taken) == len(trainer.schedule) - 1
    assert torch.isfinite(trainer.layout.optimizer.master).all()
    named = trainer.schedule[2].packs[0][0].id
    assert "step 3 skipped" in caplog.text and named in caplog.text
    assert all(record["step"] != 3 for record in trainer.state["records"])


def test_too_many_skipped_steps_stop_the_run(
    samples: list[Located], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {1, 2, 3, 4})
    with pytest.raises(DataError, match="max_skipped"):
        make_trainer(tmp_path, samples, max_skipped=2).run()


def spoil(patch: pytest.MonkeyPatch, numbers: set[int]) -> None:
    """Put infinities into the states of some steps."""
    step = Trainer.step

    def spoilt(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if number in numbers:
            packs[0].aux[0] = float("inf")
        return step(self, number, packs)

    patch.setattr(Trainer, "step", spoilt)


def test_sigterm_writes_a_checkpoint_and_a_second_run_ends_with_the_same_weights(
    samples: list[Located], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_trainer(tmp_path / "whole", samples)
    whole.run()
    step = Trainer.step

    def ended(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if number == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, packs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", ended)
        with pytest.raises(Preempted):
            make_trainer(tmp_path / "parts", samples).run()
    assert (tmp_path / "parts/checkpoints/step-000005").is_dir()
    second = make_trainer(tmp_path / "parts", samples)
    second.run()
    assert torch.equal(second.layout.optimizer.master, whole.layout.optimizer.master)
    assert second.state["records"] == whole.state["records"]


def test_out_of_memory_halves_the_packs_once_and_takes_the_same_steps(
    samples: list[Located], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = make_trainer(tmp_path / "whole", samples)
    whole.run()
    step = Trainer.step

    def limited(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if any(len(pack.token_ids) > 100 for pack in packs):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, number, packs)

    monkeypatch.setattr(Trainer, "step", limited)
    halved = make_trainer(tmp_path / "halved", samples)
    with caplog.at_level("WARNING", logger="aerie"):
        halved.run()
    assert caplog.text.count("packs are cut to 64 tokens") == 1
    torch.testing.assert_close(
        halved.layout.optimizer.master, whole.layout.optimizer.master, rtol=1e-3, atol=1e-4
    )


def test_memory_for_less_than_half_a_pack_is_an_error_with_a_remedy(
    samples: list[Located], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "step", none_left)
    with pytest.raises(EngineError, match="lower `pack_tokens`"):
        make_trainer(tmp_path, samples).run()


def test_the_loader_yields_every_sample_in_the_order_of_the_plan(samples: list[Located]) -> None:
    steps = plan_steps(samples, 128, 3, 1, 2)
    plan = [step.of(0, 1, 1) for step in steps]
    loader = Loader(plan, 128, ALONE.device)
    seen = [[pack.answers for pack in packs] for packs in loader]
    assert seen == [[tuple(s.answer for s in pack) for pack in packs] for packs in plan]
    assert sum(len(answers) for step in seen for answers in step) == len(samples)


def test_ranks_share_the_packs_of_a_step(samples: list[Located]) -> None:
    for step in plan_steps(samples, 128, 0, 1, 3):
        shares = [pack for rank in range(3) for pack in step.of(rank, 3, 1)]
        assert shares == list(step.packs)
        halves = [part for rank in range(3) for part in step.of(rank, 3, 2)]
        assert [s for part in halves for s in part] == [s for pack in step.packs for s in pack]


def test_a_loader_that_fails_says_so(samples: list[Located]) -> None:
    gone = Located("x.0", "tiny", samples[0].file.with_name("gone.safetensors"), 0, 5, 3)
    with pytest.raises(Exception, match="not a whole states file"):
        next(iter(Loader([[(gone,)]], 128, ALONE.device)))


def test_damaged_states_are_named_and_not_trained_on(
    samples: list[Located], tmp_path: Path
) -> None:
    """One bit of one state of one sample, in a file whose header and tokens are right."""
    file, hit = copied(samples, tmp_path), samples[7]
    states = StatesFile(file)
    content = bytearray(file.read_bytes())
    content[states.places["aux"][0] + states.offsets[hit.index] * CONFIG.aux_width * 2] ^= 1
    file.write_bytes(content)
    found = locate([file.with_name("index.json")])
    assert [sample.index for sample in found] == [sample.index for sample in samples]
    with pytest.raises(ContractError, match=f"{file}: sample {hit.index} changed") as raised:
        make_trainer(tmp_path, found, epochs=1).run()
    assert "verify" in str(raised.value.remedy)


def test_a_file_of_other_samples_is_refused(samples: list[Located], tmp_path: Path) -> None:
    file = copied(samples, tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"key":"key"', b'"key":"yek"'))
    with pytest.raises(ContractError, match="other samples"):
        locate([file.with_name("index.json")])


def copied(samples: list[Located], folder: Path) -> Path:
    """The states file of `samples` in `folder`, with its index."""
    for name in ("index.json", samples[0].file.name):
        shutil.copy(samples[0].file.with_name(name), folder / name)
    return folder / samples[0].file.name


def test_two_ranks_take_the_same_steps_as_one(samples: list[Located], tmp_path: Path) -> None:
    """Two processes over gloo, one pack each, against one that accumulates two."""
    whole = make_trainer(tmp_path / "whole", samples, accumulate=2)
    whole.run()
    done = two_ranks(tmp_path)
    assert done.returncode == 0, done.stderr
    other = make_trainer(tmp_path / "ranks", samples, accumulate=2)
    state = load_checkpoint(
        tmp_path / "ranks/checkpoints", other.state["contract"], other.layout.restore
    )
    assert state is not None and state["step"] == len(whole.schedule)
    for one, two in zip(whole.state["records"], state["records"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["supervised"] == one["supervised"]
    assert state["epochs"] == whole.state["epochs"]


def test_two_ranks_stop_together_when_one_is_told_to_end(
    samples: list[Located], tmp_path: Path
) -> None:
    """Also where epochs end so often that figures are never read between them."""
    done = two_ranks(tmp_path, "1")
    assert done.returncode and "told to end" in done.stderr
    other = make_trainer(tmp_path / "ranks", samples, accumulate=2)
    ends = next(n + 1 for n in range(len(other.schedule)) if other._ends_epoch(n))
    folder = tmp_path / "ranks/checkpoints"
    state = load_checkpoint(folder, other.state["contract"], other.layout.restore)
    assert state is not None and state["step"] <= ends


def test_more_processes_than_gpus_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in (("LOCAL_WORLD_SIZE", "2"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="lower `gpus`"), join():
        pass


def two_ranks(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This file, run by two processes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--", str(Path(__file__).resolve()), str(folder), *arguments,
    ]  # fmt: skip
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, check=False, timeout=240, capture_output=True, text=True
    )


def _as_a_rank(folder: Path, told: int | None) -> None:
    """Train; the rank `told` gets a SIGTERM before its first step."""
    step = Trainer.step

    def ended(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if number == 0 and self.ranks.rank == told:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, packs)

    with pytest.MonkeyPatch.context() as patch, join() as ranks:
        patch.setattr(Trainer, "step", ended)
        found = locate([folder / "states/tiny/000/index.json"])
        make_trainer(folder / "ranks", found, ranks).run()


if __name__ == "__main__":
    _as_a_rank(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
