"""Selection: the parts of a dataset that meet its take, each the same whatever else is taken.

A part is a fixed slice of the rank order of all candidates. A candidate that an earlier dataset
has too is dropped from its own part and moves no other; whether the earlier dataset selects it has
no say, so that no take changes another dataset.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerie.command import log
from aerie.contracts.prompts import (
    PROMPTS,
    Prompt,
    Reason,
    Reject,
    part_name,
    read_prompts,
    read_rejects,
    write_prompts,
    write_rejects,
)
from aerie.contracts.sidecar import read_sidecar, write_sidecar
from aerie.contracts.tables import read_table
from aerie.errors import ContractError, GateError
from aerie.files import fsync_directory, read_json, write_json
from aerie.prompts.text import head


@dataclass(frozen=True)
class Part:
    """A slice of the rank order without its duplicates."""

    number: int
    prompts: list[Prompt]
    dropped: int

    @property
    def name(self) -> str:
        return part_name(self.number)


def select(take: int, part_size: int, candidates: Path, earlier: list[Path], out: Path) -> None:
    """Write the selection of one dataset as the folder `out`, whole or not at all.

    `candidates` is the dataset's `candidates.json`, `earlier` those of the datasets that go before
    it, in priority order. `out` gets `NNN.parquet` and `NNN.json` for each part, `rejects.parquet`,
    `licence.json` and `selection.json`.

    Raises:
        ContractError: candidates are missing or damaged.
        GateError: no candidate is left.
    """
    sidecar = read_sidecar(candidates, "candidates")
    name = sidecar["provenance"]["dataset"]
    prompts = read_prompts(candidates.parent / "candidates.parquet")
    owners = find_owners(prompts, earlier)
    parts = take_parts(split_parts(prompts, part_size, owners), take)
    rows = sum(len(part.prompts) for part in parts)
    if not rows:
        raise GateError(
            "prompts",
            f"no prompt of {name} is left",
            saw=f"{len(prompts):,} candidates, {len(owners):,} of them in earlier datasets",
            remedy=f"remove {name} from the mix or move it before the datasets that repeat it",
        )
    if rows < take:
        log.warning("%s: %s prompts are wanted and only %s exist", name, f"{take:,}", f"{rows:,}")
    rejects = read_rejects(candidates.parent / "rejects.parquet")
    rejects += [
        _duplicate(prompt, owners[prompt.key]) for prompt in prompts if prompt.key in owners
    ]
    with replacing_folder(out) as scratch:
        for part in parts:
            _write_part(scratch, part, sidecar["provenance"])
        write_rejects(scratch / "rejects.parquet", rejects)
        write_json(scratch / "licence.json", _licence(sidecar["provenance"], rows))
        write_json(
            scratch / "selection.json",
            {
                "dataset": name,
                "take": take,
                "part_size": part_size,
                "rows": sidecar["counts"]["rows"],
                "selected": rows,
                "surplus": len(prompts) - len(owners) - rows,
                "rejected": len(rejects),
                "duplicates": dict(Counter(owners.values())),
                "parts": [
                    {"name": part.name, "rows": len(part.prompts), "dropped": part.dropped}
                    for part in parts
                ],
            },
        )


def read_selection(folder: Path) -> list[str]:
    """The names of the parts that a selection holds, in order.

    Raises:
        ContractError: there is no readable selection in `folder`.
    """
    path = folder / "selection.json"
    content = read_json(path)
    try:
        return [str(part["name"]) for part in content["parts"]]
    except (TypeError, KeyError) as error:
        raise ContractError(
            f"{path} does not list the parts of a selection",
            saw=error,
            remedy=f"remove {folder} and run the build again",
        ) from error


def find_owners(prompts: list[Prompt], earlier: list[Path]) -> dict[str, str]:
    """The keys of `prompts` that an earlier dataset has too, with the first that has it.

    `earlier` are files `candidates.json` in priority order.
    """
    free = {prompt.key for prompt in prompts}
    owners: dict[str, str] = {}
    for path in earlier:
        name = read_sidecar(path, "candidates")["provenance"]["dataset"]
        keys = {
            row["key"] for row in read_table(path.parent / "candidates.parquet", PROMPTS, ["key"])
        }
        owners.update(dict.fromkeys(free & keys, name))
        free -= keys
    return owners


def split_parts(prompts: list[Prompt], part_size: int, owners: dict[str, str]) -> Iterator[Part]:
    """All parts of `prompts`, which are in rank order, without those that have other owners."""
    for number, start in enumerate(range(0, len(prompts), part_size)):
        slice_ = prompts[start : start + part_size]
        kept = [replace(prompt, part=number) for prompt in slice_ if prompt.key not in owners]
        yield Part(number, kept, len(slice_) - len(kept))


def take_parts(parts: Iterator[Part], take: int) -> list[Part]:
    """Whole parts in their order until they hold `take` prompts. Empty parts are left out."""
    taken: list[Part] = []
    rows = 0
    for part in parts:
        if rows >= take:
            break
        if part.prompts:
            taken.append(part)
            rows += len(part.prompts)
    return taken


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder`; on a clean exit it is fsynced and takes its place.

    On an exception `folder` is left as it was.
    """
    scratch = folder.with_name(f".{folder.name}.tmp")
    old = folder.with_name(f".{folder.name}.old")
    # What a killed run left behind.
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        fsync_directory(scratch)
        # A folder cannot be renamed over one that holds files. Killed in between, the next run
        # finds none and makes it again.
        if folder.exists():
            os.rename(folder, old)
        os.rename(scratch, folder)
        fsync_directory(folder.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write_part(folder: Path, part: Part, provenance: dict[str, Any]) -> None:
    file = folder / f"{part.name}.parquet"
    write_prompts(file, part.prompts)
    # Nothing of other parts or of the sources: a part that stays the same must look the same.
    own = {key: provenance[key] for key in ("dataset", "adapter", "licence")}
    counts = {"rows": len(part.prompts), "dropped": part.dropped}
    write_sidecar(
        folder / f"{part.name}.json",
        "prompts",
        [file],
        counts,
        {**own, "part": part.number, "mode": part.prompts[0].mode},
    )


def _licence(provenance: dict[str, Any], rows: int) -> dict[str, Any]:
    return {
        "dataset": provenance["dataset"],
        "id": provenance["adapter"],
        "licence": provenance["licence"],
        "category": provenance["category"],
        "adapter": provenance["adapter"],
        "rows": rows,
    }


def _duplicate(prompt: Prompt, owner: str) -> Reject:
    return Reject(
        prompt.id, prompt.dataset, Reason.DUPLICATE, f"same text in {owner}", head(prompt.turns[0])
    )
