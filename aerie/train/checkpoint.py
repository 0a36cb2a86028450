"""Resumable checkpoints: the flat weights and moments as safetensors, never pickles.

A checkpoint is a folder `step-NNNNNN`, written beside and renamed. `state.json` carries the run's
contract; a checkpoint of another contract is not resumed, and the fields that differ are named.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from aerie.errors import ContractError
from aerie.files import digest_file, fsync_directory, read_json, saving_tensors, write_sealed
from aerie.train.weights import Matrices, spans

log = logging.getLogger("aerie")

_TENSORS = "state.safetensors"


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int
) -> None:
    """Write `tensors` as `step-NNNNNN`, link `best` to the best one, then drop all others but the
    last `keep` that were written.
    """
    scratch = folder / f".step-{step:06d}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    file, final = scratch / _TENSORS, folder / _name(step)
    try:
        with saving_tensors(file):
            save_file(tensors, file)
        digest = digest_file(file)
        write_sealed(scratch / "state.json", {**state, "step": step, "tensors": digest})
        with file.open("rb") as written:
            # The rename below must not become durable before what it names.
            fsync_directory(scratch)
            os.fsync(written.fileno())
        shutil.rmtree(final, ignore_errors=True)
        scratch.rename(final)
    finally:
        # A disk that is full must not stay so because of it.
        shutil.rmtree(scratch, ignore_errors=True)
    fsync_directory(folder)
    _link_best(folder, state)
    for old in _checkpoints(folder)[:-keep]:
        if old.name != _best(folder):
            shutil.rmtree(old)


def load_checkpoint(
    folder: Path, contract: dict[str, Any], restore: Callable[[Path], None]
) -> dict[str, Any] | None:
    """Give the tensors' file of the newest whole checkpoint of `contract` to `restore`; return its
    state, None if none fits. A damaged one is passed over: the steps since the one before are done
    again.
    """
    for checkpoint in reversed(_checkpoints(folder)):
        try:
            state = _read_state(checkpoint)
        except ContractError as error:
            log.warning("not resuming %s, which is damaged:\n%s", checkpoint, error)
            continue
        differing = differences(state["contract"], contract)
        if differing:
            log.info("not resuming %s, which differs in:\n%s", checkpoint, "\n".join(differing))
            continue
        restore(checkpoint / _TENSORS)
        if state["best"] and not (folder / _name(state["best"]["step"])).is_dir():
            log.warning("%s is gone; the best is chosen among later epochs", folder / "best")
            state["best"] = None
        log.info("resuming after step %d", state["step"])
        return state
    return None


def resumable_step(folder: Path, contract: dict[str, Any]) -> int:
    """The step after which `load_checkpoint` would continue; 0 for a run from the start."""
    state = load_checkpoint(folder, contract, lambda tensors: None)
    return int(state["step"]) if state else 0


def load_weights(folder: Path, step: int, weights: Matrices) -> None:
    """Restore the weights alone of the checkpoint after `step`, in place and in their dtype.

    Raises:
        ContractError: it is damaged.
    """
    _read_state(folder / _name(step))
    with safe_open(folder / _name(step) / _TENSORS, "pt") as saved:
        for name, span in spans(weights.config).items():
            weights.parts[name].copy_(saved.get_slice("weights")[span])


def _read_state(checkpoint: Path) -> dict[str, Any]:
    """The state of a checkpoint, once its tensors are known to be those that were saved with it.

    Raises:
        ContractError: they are not, or one of the files is missing or damaged.
    """
    state: dict[str, Any] = read_json(checkpoint / "state.json")
    tensors = checkpoint / _TENSORS
    saw = digest_file(tensors) if tensors.is_file() else "no such file"
    expected = state.pop("tensors", None) if isinstance(state, dict) else None
    if saw != expected:
        raise ContractError(
            f"{tensors} is not what was saved",
            saw=saw,
            expected=expected,
            remedy=f"remove {checkpoint} and run the build again: it goes on from an earlier one",
        )
    return state


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The fields in which two contracts differ, one line each."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in sorted({*old, *new}):
            lines += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return lines
    return [] if old == new else [f"  {path}: {old!r} then, {new!r} now"]


def _link_best(folder: Path, state: dict[str, Any]) -> None:
    """Point `best` to the checkpoint that `state` calls the best, if there is one."""
    if state["best"] and _best(folder) != _name(state["best"]["step"]):
        scratch = folder / ".best.tmp"
        scratch.unlink(missing_ok=True)
        # Relative, so that the folder can be moved.
        scratch.symlink_to(_name(state["best"]["step"]))
        scratch.replace(folder / "best")
        fsync_directory(folder)


def _name(step: int) -> str:
    return f"step-{step:06d}"


def _best(folder: Path) -> str | None:
    """The name of the checkpoint that `best` points to."""
    link = folder / "best"
    return link.readlink().name if link.is_symlink() else None


def _checkpoints(folder: Path) -> list[Path]:
    """In the order in which they were written: those of another contract may have later steps."""
    return sorted(folder.glob("step-*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
