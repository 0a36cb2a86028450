"""Checkpoints: which are kept, where `best` points, and which weights are exported."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from aerie.train.checkpoint import load_checkpoint, save_checkpoint
from aerie.train.optimizer import AdamW
from aerie.train.trainer import Trainer
from tests.unit.train_fixtures import make_trainer, write_samples

pytestmark = pytest.mark.usefixtures("one_thread")

CONTRACT = {"settings": {"seed": 0}}


def optimizer(value: float = 0.0) -> AdamW:
    master = torch.full((4,), value)
    return AdamW(master, master, (0.9, 0.95), 0.0, 0.5)


def state(best: int | None, contract: dict[str, Any] = CONTRACT) -> dict[str, Any]:
    found = None if best is None else {"step": best, "epoch": 1, "accept_length": 2.0}
    return {"best": found, "contract": contract}


def flat(trainer: Trainer) -> torch.Tensor:
    """All weights of a trainer, a copy."""
    return torch.cat([*trainer.layout.weights.parts.values()])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("step-*")}


@settings(max_examples=30)  # each writes up to nine checkpoints to the disk
@given(
    lengths=st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=9),
    keep=st.integers(1, 3),
)
def test_the_last_ones_and_the_best_are_kept_and_best_points_to_it(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int | None], keep: int
) -> None:
    """`lengths` are what evaluations found; None is a checkpoint between two of them."""
    folder, best = tmp_path_factory.mktemp("kept"), None
    for step, length in enumerate(lengths, start=1):
        if length is not None and length > max((n for n in lengths[: step - 1] if n is not None),
                                               default=-1):  # fmt: skip
            best = step
        save_checkpoint(folder, step, optimizer().state(), state(best), keep)
        last = {f"step-{n:06d}" for n in range(max(1, step - keep + 1), step + 1)}
        assert names(folder) == last | ({f"step-{best:06d}"} if best else set())
        link = folder / "best"
        assert link.is_symlink() == bool(best)
        if best:
            assert str(link.readlink()) == f"step-{best:06d}" and link.is_dir()
    assert {path.name for path in folder.iterdir()} <= names(folder) | {"best"}
    shutil.rmtree(folder)


def test_checkpoints_of_another_contract_make_way_for_new_ones(tmp_path: Path) -> None:
    """Those of a run that came further must not push out the ones that can be resumed."""
    for step in (800, 900):
        save_checkpoint(
            tmp_path, step, optimizer().state(), state(800, {"settings": {"seed": 1}}), 2
        )
    for step in (10, 20):
        save_checkpoint(tmp_path, step, optimizer(float(step)).state(), state(None), 2)
    restored: list[Path] = []
    found = load_checkpoint(tmp_path, CONTRACT, restored.append)
    assert found is not None and found["step"] == 20
    assert load_file(restored[0])["weights"].tolist() == [20.0] * 4
    assert "step-000900" not in names(tmp_path)


def test_a_best_checkpoint_that_is_gone_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, 1, optimizer().state(), state(1), 1)
    save_checkpoint(tmp_path, 2, optimizer().state(), state(1), 1)
    shutil.rmtree(tmp_path / "step-000001")
    with caplog.at_level("WARNING", logger="aerie"):
        found = load_checkpoint(tmp_path, CONTRACT, lambda file: None)
    assert found is not None and found["best"] is None and "best is gone" in caplog.text
    save_checkpoint(tmp_path, 3, optimizer().state(), {**found, **state(3)}, 1)
    assert (tmp_path / "best").readlink().name == "step-000003"


@pytest.mark.parametrize(("export", "epoch"), [("best", 1), ("last", 3)])
def test_a_run_exports_what_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: str, epoch: int
) -> None:
    """A run whose first epoch is the best, killed before the export and started again."""
    evaluate = Trainer.evaluate

    def falling(self: Trainer, number: int) -> dict[str, Any]:
        result = evaluate(self, number)
        result["overall"]["accept_length"] = 3.0 - number
        return result

    monkeypatch.setattr(Trainer, "evaluate", falling)
    samples = write_samples(tmp_path)
    after: dict[int, torch.Tensor] = {}
    whole = make_trainer(tmp_path, samples, epochs=3, keep_checkpoints=1, export=export)
    ends = [n + 1 for n in range(len(whole.schedule)) if whole._ends_epoch(n)]
    save = Trainer._save

    def noted(self: Trainer) -> None:
        after[self.state["step"]] = flat(self)
        save(self)

    monkeypatch.setattr(Trainer, "_save", noted)
    whole.run()
    assert whole.exported == {"step": ends[epoch - 1], "epoch": epoch}
    assert torch.equal(flat(whole), after[ends[epoch - 1]])
    assert not torch.equal(after[ends[0]], after[ends[2]])
    again = make_trainer(tmp_path, samples, epochs=3, keep_checkpoints=1, export=export)
    again.run()
    assert again.exported == whole.exported
    assert torch.equal(flat(again), flat(whole))


def test_a_full_disk_is_known_for_one_and_keeps_no_scratch(small_disk: Path) -> None:
    """safetensors calls it an error of its own, which the scripts took for a fault of Aerie."""
    with pytest.raises(OSError, match="No space left") as caught:
        master = torch.zeros(1_000_000)
        large = AdamW(master, master, (0.9, 0.95), 0.0, 0.5)
        save_checkpoint(small_disk, 1, large.state(), state(None), 1)
    assert caught.value.errno == errno.ENOSPC and "state.safetensors" in str(caught.value)
    assert list(small_disk.iterdir()) == []
