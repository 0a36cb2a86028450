"""Shards of weights, gradient and optimizer over two processes: the same steps as one process."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aerie.errors import ConfigError, EngineError
from aerie.train.data import Located, locate
from aerie.train.layout import Sharded, new_layout
from aerie.train.packing import Pack
from aerie.train.ranks import Ranks, join
from aerie.train.stop import Preempted
from aerie.train.trainer import Trainer
from aerie.train.weights import Weights
from tests.unit.train_fixtures import ALONE, CONFIG, SETTINGS, make_trainer, write_samples

pytestmark = pytest.mark.usefixtures("one_thread")

# Folder, layout and packs of each rank; those that end with "+" compute the MLP again.
RUNS = [
    ("none-2", "none", 2), ("optimizer-1", "optimizer", 1), ("optimizer-2", "optimizer", 2),
    ("full-1", "full", 1), ("full-2+", "full", 2),
]  # fmt: skip
SPOILT, ENDED = 2, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left that ran this file."""
    folder = tmp_path_factory.mktemp("sharding")
    write_samples(folder)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--", str(Path(__file__).resolve()), str(folder),
    ]  # fmt: skip
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, check=False, timeout=240, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def samples(folder: Path) -> list[Located]:
    return located(folder)


def located(folder: Path) -> list[Located]:
    return locate([folder / "states/tiny/000/index.json"])


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, Trainer]:
    """One process that accumulates what two had, 2 and 4 packs; a step of it is not finite."""
    found = {}
    for packs in (2, 4):
        trainer = make_trainer(folder / f"alone-{packs}", located(folder), accumulate=packs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", spoiling(0))
            trainer.run()
        found[packs] = trainer
    return found


def spoiling(rank: int) -> Any:
    """`Trainer.step` with infinite states in one step of one rank."""
    step = Trainer.step

    def spoilt(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if number == SPOILT and self.ranks.rank == rank:
            packs[0].aux[0] = float("inf")
        return step(self, number, packs)

    return spoilt


def last_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The state in the newest checkpoint."""
    return load_file(max(folder.glob("checkpoints/step-*")) / "state.safetensors")


@pytest.mark.parametrize(("name", "sharding", "packs"), RUNS)
def test_every_layout_takes_the_steps_of_one_process(
    folder: Path, alone: dict[int, Trainer], name: str, sharding: str, packs: int
) -> None:
    whole = alone[2 * packs]
    resumed = make_trainer(folder / name, located(folder), accumulate=2 * packs)
    # What two ranks wrote in shards, one process reads whole.
    resumed.run()
    assert resumed.state["step"] == len(whole.schedule) and resumed.state["skipped"] == 1
    assert float(resumed.layout.optimizer.taken) == len(whole.schedule) - 1
    for key, tensor in last_tensors(folder / name).items():
        expected = whole.layout.optimizer.state()[key]
        torch.testing.assert_close(tensor, expected, rtol=1e-3, atol=2e-5)
    for one, two in zip(whole.state["records"], resumed.state["records"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)
        assert two["accuracy"] == pytest.approx(one["accuracy"], abs=0.02)
    lengths = [
        [epoch["overall"]["accept_length"] for epoch in trainer.state["epochs"]]
        for trainer in (whole, resumed)
    ]
    assert lengths[0] == pytest.approx(lengths[1], abs=0.05)


def test_a_run_goes_on_in_another_layout(folder: Path, alone: dict[int, Trainer]) -> None:
    """Ended under `optimizer`, continued under `full`."""
    expected = alone[2].layout.optimizer.master
    found = last_tensors(folder / "moved")["weights"]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def test_the_exported_weights_are_whole(folder: Path, alone: dict[int, Trainer]) -> None:
    for name in ("optimizer-1", "full-1"):
        exported = load_file(folder / name / "exported.safetensors")
        for key, tensor in alone[2].layout.weights.named.items():
            torch.testing.assert_close(exported[key], tensor, rtol=1e-3, atol=2e-5)


def test_a_number_of_ranks_that_divides_no_part_is_refused() -> None:
    master = Weights.zeros(CONFIG, torch.float32, torch.device("cpu"))
    settings = SETTINGS.model_copy(update={"sharding": "full"})
    with pytest.raises(ConfigError, match="sharding: none"):
        new_layout(settings, master, Ranks(0, 3, ALONE.device))


def test_full_frees_what_it_does_not_use() -> None:
    """Between packs, of weights and gradient alike."""
    master = Weights.zeros(CONFIG, torch.float32, torch.device("cpu"))
    layout = Sharded(SETTINGS, master, Ranks(1, 2, ALONE.device), frees=True)
    for matrices in (layout.weights, layout.gradient):
        assert all(not part.untyped_storage().nbytes() for part in matrices.parts.values())
    kept = sum(tensor.numel() for tensor in layout.optimizer.state().values())
    assert kept == 3 * len(master.flat) // 2 + 1


def test_out_of_memory_is_an_error_where_ranks_exchange_data(
    tmp_path: Path, samples: list[Located]
) -> None:
    """One rank cannot repeat a step alone."""
    trainer = make_trainer(
        tmp_path, samples, Ranks(0, 2, ALONE.device), sharding="optimizer"
    )  # fmt: skip
    with pytest.raises(EngineError, match="lower `pack_tokens`"):
        trainer._lower_budget(torch.OutOfMemoryError("CUDA out of memory"))


def _as_a_rank(folder: Path) -> None:
    found = located(folder)
    with join() as ranks, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", spoiling(1))
        for name, sharding, packs in RUNS:
            trainer = make_trainer(
                folder / name, found, ranks, sharding=sharding, accumulate=packs,
                activation_checkpointing=name.endswith("+"),
            )  # fmt: skip
            trainer.run()
            if ranks.leads:
                _export(trainer, folder / name / "exported.safetensors")
        _move(folder / "moved", found, ranks)


def _export(trainer: Trainer, file: Path) -> None:
    from safetensors.torch import save_file

    named = trainer.layout.weights.named
    save_file({name: view.contiguous().clone() for name, view in named.items()}, file)


def _move(folder: Path, found: list[Located], ranks: Ranks) -> None:
    step = Trainer.step

    def ended(self: Trainer, number: int, packs: Sequence[Pack]) -> Any:
        if number == ENDED and ranks.leads:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, packs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", ended)
        with pytest.raises(Preempted):
            make_trainer(folder, found, ranks, sharding="optimizer").run()
    make_trainer(folder, found, ranks, sharding="full").run()


if __name__ == "__main__":
    _as_a_rank(Path(sys.argv[1]))
