"""A file that changed on the disk is named by `verify`, and refused by whoever reads it."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from aerie.verify import repair, verify
from tests.faults.ledger import Ledger
from tests.faults.runs import Job, Runner, tree
from tests.workflow.conftest import Checkout

# Of each artifact: the phases that read it, by a pattern of its path below the work folder.
READERS = (
    ("target/*", ("candidates", "responses", "states")),
    ("candidates/*/*", ("prompts",)),
    ("prompts/*/*.json", ("responses", "lock")),
    ("prompts/*/[0-9]*.parquet", ("responses",)),
    ("responses/*/[0-9][0-9][0-9].*", ("counts", "states")),
    ("vocab/counts/*", ("map",)),
    ("vocab/map.*", ("draft",)),
    ("vocab/coverage.json", ("report",)),
    ("states/*/*/*", ("manifest", "draft")),
    ("states/manifest.json", ("draft",)),
    ("draft/*/*", ("bench",)),
    ("overlap/overlap.json", ()),
    ("bench/*/*.json", ("report",)),
    ("lock.json", ("report",)),
)
# Made for other tools and for people: Aerie itself never reads them.
FOR_OTHERS = ("t2d.pt", "d2t.pt", "train.jsonl", "eval.json")
Damage = Callable[[Path, random.Random], None]


def flip(path: Path, moments: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[moments.randrange(len(content))] ^= 1 << moments.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, moments: random.Random) -> None:
    os.truncate(path, moments.randrange(path.stat().st_size))


def lose(path: Path, moments: random.Random) -> None:
    path.unlink()


def swap(path: Path, moments: random.Random) -> None:
    """With another file of its kind; with none there, its own halves."""
    others = sorted(
        each
        for each in path.parents[1].rglob(f"*{path.suffix}")
        if each != path and each.name == path.name and each.read_bytes() != path.read_bytes()
    )
    if others:
        other = moments.choice(others)
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
        return
    content = path.read_bytes()
    path.write_bytes(content[len(content) // 2 :] + content[: len(content) // 2])


KINDS: dict[str, Damage] = {"flip": flip, "truncate": truncate, "lose": lose, "swap": swap}


def artifacts(work: Path, moments: random.Random) -> list[tuple[Path, tuple[str, ...]]]:
    """Files of every kind, with who reads them: at most two for a pattern."""
    chosen: list[tuple[Path, tuple[str, ...]]] = []
    for pattern, readers in READERS:
        found = sorted(
            path
            for path in work.glob(pattern)
            if path.is_file() and path.stat().st_size > 1 and path.name != "server.log"
        )
        assert found, pattern
        chosen += [(path, readers) for path in moments.sample(found, min(2, len(found)))]
    return chosen


def restore(runner: Runner, folder: Path) -> None:
    """Bring the work folder back to what the undisturbed build left."""
    shutil.rmtree(folder)
    shutil.copytree(runner.checkout.work, folder, symlinks=True)


def test_damage_is_named_and_only_that_is_made_again(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    """`verify` names it; `--repair` and the jobs whose outputs it removed bring it back."""
    moments = random.Random(11)
    checkout = runner.copy(tmp_path / "checkout")
    for path, _ in artifacts(checkout.work, moments):
        for name, damage in KINDS.items():
            what = f"{name} {path.relative_to(checkout.work)}"
            damage(path, moments)
            if tree(checkout.work) == tree(runner.checkout.work):
                continue
            findings = verify(checkout.work).findings
            # Snakemake misses a sidecar by itself: nothing is left that says it was there.
            if not findings and (name != "lose" or path.suffix != ".json"):
                outcome, note = "wrong", "verify finds nothing"
            else:
                repair(findings)
                outcome, note = rebuilt(runner, checkout.folder, reference)
            ledger.add(f"damage, repaired: {name}", outcome, f"{what} {note}")
            restore(runner, checkout.work)
    assert not ledger.bad("damage, repaired")


def rebuilt(runner: Runner, folder: Path, reference: dict[str, str]) -> tuple[str, str]:
    """Run what Snakemake would: every job one of whose outputs is missing."""
    checkout = Checkout(folder)
    for job in runner.jobs:
        if not all((folder / name).exists() for name in job.outputs):
            ended = runner.run(checkout, job)
            if ended.code:
                return "wrong", f"{job.name} fails\n{ended.text[-800:]}"
    found = tree(checkout.work)
    other = [name for name, digest in reference.items() if found.get(name) != digest]
    return ("wrong", f"{other} differ") if other else ("recovered", "")


def test_damage_is_refused_or_harmless_where_it_is_read(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    """Nobody runs `verify` first: the next phase stops, or makes what it would have made."""
    moments = random.Random(12)
    checkout = runner.copy(tmp_path / "checkout")
    kinds = [name for name in KINDS if name != "lose"]
    for path, readers in artifacts(checkout.work, moments):
        if path.name in FOR_OTHERS:
            continue
        for rule in readers:
            name = moments.choice(kinds)
            KINDS[name](path, moments)
            if tree(checkout.work) != tree(runner.checkout.work):
                outcome, note = read(runner, checkout.folder, path, rule, reference)
                ledger.add(f"damage, read: {name}", outcome, f"{path}: {note}")
            restore(runner, checkout.work)
    assert not ledger.bad("damage, read")


def read(
    runner: Runner, folder: Path, path: Path, rule: str, reference: dict[str, str]
) -> tuple[str, str]:
    """Run the phase `rule` where it reads the file at `path`."""
    checkout = Checkout(folder)
    parts = path.relative_to(checkout.work).parts
    job = _reader(runner.jobs, rule, parts)
    ended = runner.run(checkout, job)
    if ended.clear:
        return "refused_clearly", ""
    if ended.code:
        return "wrong", f"{job.name}: {ended.text[-800:]}"
    found = tree(checkout.work)
    outputs = tuple(output.removeprefix("results/tiny/") for output in job.outputs)
    made = [name for name in reference if name.startswith(outputs)]
    other = [name for name in made if found.get(name) != reference[name]]
    return ("wrong", f"{job.name}: {other} differ") if other else ("recovered", "")


def _reader(jobs: list[Job], rule: str, parts: tuple[str, ...]) -> Job:
    """The job of `rule` that is about the same dataset and part as a file."""
    of_rule = [job for job in jobs if job.rule == rule]
    wanted = {part.partition(".")[0] for part in parts}

    def fit(job: Job) -> int:
        return len(wanted & set(job.outputs[0].replace(".", "/").split("/")))

    return max(of_rule, key=fit)
