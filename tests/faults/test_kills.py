"""A phase that is killed anywhere, and run again, leaves what an undisturbed run leaves."""

import random
import shutil
from pathlib import Path

from tests.faults.ledger import Ledger
from tests.faults.runs import Job, Runner, tree
from tests.workflow.conftest import Checkout
from tests.workflow.test_kill import run_and_kill

# Of each phase, fewer of those that take longest; and of whole builds.
KILLS, SLOW, SLOW_KILLS, BUILD_KILLS = 19, ("target", "bench", "draft"), 8, 3


def judge(
    runner: Runner, checkout: Checkout, job: Job, reference: dict[str, str]
) -> tuple[str, str]:
    """Run a job to its end and compare everything with the undisturbed build."""
    ended = runner.run(checkout, job)
    if ended.code:
        return "wrong", f"{job.name} does not go on\n{ended.text[-2000:]}"
    found = tree(checkout.work)
    if gone := sorted(set(reference) - set(found)):
        return "lost", f"{job.name}: {gone}"
    other = sorted(name for name, digest in reference.items() if found[name] != digest)
    left = [str(path) for path in checkout.work.rglob(".*.tmp")]
    # What a job wrote halfway is scratch, and the next run of the same job clears its own.
    return ("wrong", f"{job.name}: {other} {left}") if other else ("recovered", "")


def test_kills_of_every_phase(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    moments = random.Random(8)
    jobs = runner.one_of_each()
    for job in jobs:
        checkout = runner.copy(tmp_path / job.rule)
        events, last = runner.events[job.name], runner.seconds[job.name]
        wanted, hits = SLOW_KILLS if job.rule in SLOW else KILLS, 0
        # A moment drawn for a busy machine comes after the end of a job on a free one: drawn again.
        for number in range(2 * wanted):
            if number % 3:
                ended = runner.run(checkout, job, event=moments.randint(1, max(events, 1)))
            else:
                ended = runner.run(checkout, job, seconds=moments.uniform(0, last))
            killed = ended.killed
            # Whatever goes on after a kill may be killed as well.
            if number % 4 == 0:
                event = moments.randint(1, max(events // 2, 1))
                killed = runner.run(checkout, job, event=event).killed or killed
            if not killed:
                continue
            ledger.add(f"kill: {job.rule}", *judge(runner, checkout, job, reference))
            hits += 1
            if hits == wanted:
                break
        shutil.rmtree(checkout.folder)
    assert not ledger.bad("kill")
    tried = sum(row.tried for kind, row in ledger.rows.items() if kind.startswith("kill: "))
    assert tried >= 200 and not [note for note in ledger.notes if note.startswith("kill")]


def test_kills_of_whole_builds(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    checkout = runner.copy(tmp_path / "build")
    shutil.rmtree(checkout.work)
    moments = random.Random(9)
    for _ in range(BUILD_KILLS):
        if run_and_kill(checkout, moments.randint(1, 30), moments.uniform(0, 1)):
            ledger.add("kill of a build", "recovered")
    run = checkout.snakemake("--nolock")
    assert run.code == 0, run.text
    found = tree(checkout.work)
    assert {name: found.get(name) for name in reference} == reference
