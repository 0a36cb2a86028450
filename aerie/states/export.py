"""States for other trainers: one file for each sample, as SpecForge or speculators reads it.

Files appear whole or not at all, and a second run writes those that are missing. `export.json`
says of which states the folder is an export, so that no two are mixed.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Sample, StatesFile
from aerie.errors import ContractError, DataError
from aerie.files import digest_json, read_json, replacing, write_json
from aerie.progress import Progress
from aerie.states.speculators import Speculators
from aerie.target import Target, read_target

_MARK = "export.json"
_SAME = ("target", "layers", "dtype", "codec")


@dataclass(frozen=True)
class Source:
    """One states file and the number that its first sample has in the export."""

    path: Path
    first: int
    samples: int
    key: str


class Layout(Protocol):
    """How one project lays out its samples in a folder."""

    def path(self, number: int) -> Path:
        """Of a sample's file, relative to the folder of the export."""

    def write(self, sample: Sample, path: Path) -> None:
        """Write one sample."""

    def finish(self, out: Path, files: Sequence[Path], digest: str) -> None:
        """Write what describes all samples together; `digest` is that of all states."""


class SpecForge:
    """`rows_<g>-<g+2000>/data_<i>.ckpt`, as `scripts/prepare_hidden_states.py` of sgl-project/
    SpecForge (main @ a6b6b023) writes and `specforge/runtime/data_plane/offline_reader.py` reads.

    A file of `torch.save` with `input_ids` int64 [t], `loss_mask` int64 [t], `aux_hidden_state`
    bf16 [1, t, A*H] and `hidden_state` bf16 [1, t, H], the latter after the final norm.
    """

    _FOLDER = 2000

    def __init__(self, layers: Sequence[int], target: Target | None) -> None:
        pass

    def path(self, number: int) -> Path:
        start = number // self._FOLDER * self._FOLDER
        return Path(f"rows_{start}-{start + self._FOLDER}", f"data_{number}.ckpt")

    def write(self, sample: Sample, path: Path) -> None:
        import torch

        tensors = {
            "input_ids": sample.token_ids.long(),
            "loss_mask": sample.loss_mask.long(),
            # A slice would be saved with all of the file that it is a view of.
            "aux_hidden_state": sample.aux.clone().unsqueeze(0),
            "hidden_state": sample.final().clone().unsqueeze(0),
        }
        with replacing(path) as scratch, scratch.open("wb") as stream:
            # Given a path, torch.save puts the scratch file's random name inside the archive.
            torch.save(tensors, stream)

    def finish(self, out: Path, files: Sequence[Path], digest: str) -> None:
        """There is nothing to add: SpecForge lists the folder."""


FORMATS: dict[str, type[SpecForge | Speculators]] = {
    "specforge": SpecForge,
    "speculators": Speculators,
}


def export(
    indexes: Sequence[Path], format: str, out: Path, target: Path | None = None
) -> dict[str, Any]:
    """Export the states of `indexes`, in their order, into `out`; return what export.json says.

    `target` is target.json, which `speculators` needs.

    Raises:
        ContractError: states are damaged, were captured in different ways, or not of `target`.
        DataError: the states have no final state, `out` holds something else, or another export is
            writing there.
    """
    content, sources = _survey(indexes, format)
    model = read_target(target) if target else None
    if model and model.revision != content["target"]:
        raise ContractError(
            f"{target} is not the target of these states",
            saw=model.revision,
            expected=content["target"],
            remedy="give target.json of the work folder that the states lie in",
        )
    layout: Layout = FORMATS[format](content["layers"]["hf_hidden_states"], model)
    with _claimed(out, content):
        with Progress(f"export {format}", content["samples"], "samples", "tokens") as progress:
            for source in sources:
                _write(source, layout, out, progress)
        layout.finish(out, [source.path for source in sources], content["states"])
    return content


def _survey(indexes: Sequence[Path], format: str) -> tuple[dict[str, Any], list[Source]]:
    """What export.json says, and the states files with the numbers of their samples."""
    contents = [read_sidecar(index, "states") for index in indexes]
    how = [{name: content["provenance"][name] for name in _SAME} for content in contents]
    for index, each in zip(indexes, how, strict=True):
        if each != how[0]:
            raise ContractError(
                f"{index} was captured in another way than {indexes[0]}",
                saw=each,
                expected=how[0],
                remedy="export what manifest.json names: it is of one target and its layers",
            )
    if how[0]["codec"] == "teacher":
        raise DataError(
            f"{indexes[0]} holds no final states, which every export has",
            saw="codec: teacher, the target's likeliest tokens in their place",
            expected="states.codec bf16 or fp8",
            remedy="set `states.codec: bf16` or `fp8` and run the build again: it captures anew",
        )
    sources, identity, first = [], [], 0
    for index, content in zip(indexes, contents, strict=True):
        part = f"{index.parent.parent.name}/{index.parent.name}"
        for name, entry in content["files"].items():
            samples = len(entry["samples"])
            sources.append(Source(index.with_name(name), first, samples, entry["key"]))
            identity.append([part, name, entry["key"], entry["xxh3"]])
            first += samples
    tokens = sum(content["counts"]["tokens"] for content in contents)
    return {
        "format": format,
        "states": digest_json(identity),
        "samples": first,
        "tokens": tokens,
        **how[0],
    }, sources


@contextmanager
def _claimed(out: Path, content: dict[str, Any]) -> Iterator[None]:
    """Hold the folder of this export, and remove what a killed run left half-written in it."""
    out.mkdir(parents=True, exist_ok=True)
    mark = out / _MARK
    descriptor = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"another export is writing into {out}",
                remedy="wait for it, or name another folder",
            ) from error
        leftovers = [path for path in out.rglob(".*.tmp") if path.is_file()]
        others = [path for path in out.iterdir() if path not in leftovers]
        if others and not (mark.exists() and read_json(mark) == content):
            raise DataError(
                f"{out} holds something else",
                saw="another export" if mark.exists() else others[0].name,
                expected="an empty folder, or one that this export was begun in",
                remedy="name another folder, or empty this one",
            )
        for path in leftovers:
            path.unlink()
        write_json(mark, content)
        yield
    finally:
        os.close(descriptor)


def _write(source: Source, layout: Layout, out: Path, progress: Progress) -> None:
    paths = [out / layout.path(source.first + place) for place in range(source.samples)]
    missing = [place for place, path in enumerate(paths) if not path.exists()]
    progress.skip(source.samples - len(missing))
    if not missing:
        return
    states = _whole(source)
    for place in missing:
        sample = states[place]
        layout.write(sample, paths[place])
        progress.advance(1, len(sample.token_ids))


def _whole(source: Source) -> StatesFile:
    """The file, once its bytes are what they were when it was written."""
    states = StatesFile(source.path)
    if states.metadata.get("key") != source.key or len(states) != source.samples:
        problem = "holds other samples than the index says"
    elif damaged := states.damaged_tensors():
        problem = f"{', '.join(damaged)} changed since it was written"
    else:
        return states
    raise ContractError(
        f"{source.path} is damaged",
        saw=problem,
        remedy="run `make verify ARGS=--repair`, then the build: only this file is redone",
    )
