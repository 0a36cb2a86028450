"""A clock that jumps, and files whose times make no sense, change no artifact."""

import os
import random
from pathlib import Path

from tests.faults.ledger import Ledger
from tests.faults.runs import Runner, tree


def test_a_clock_that_jumps(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    moments = random.Random(13)
    checkout = runner.copy(tmp_path / "checkout")
    for number, job in enumerate(runner.one_of_each(), 1):
        # Killed halfway, so that what is left has to be put in order, and its times shuffled.
        half = max(runner.events[job.name] // 2, 1)
        runner.run(checkout, job, event=half, jumps=number)
        for path in (checkout.work / "journal").rglob("*"):
            moment = path.stat(follow_symlinks=False).st_mtime + moments.uniform(-3e7, 3e7)
            os.utime(path, (moment, moment), follow_symlinks=False)
        ended = runner.run(checkout, job, jumps=number + 100)
        found = tree(checkout.work)
        other = [name for name, digest in reference.items() if found.get(name) != digest]
        good = not ended.code and not other
        note = f"{job.name}: {other} {ended.text[-800:]}"
        ledger.add("clock that jumps", "recovered" if good else "wrong", note)
    assert not ledger.bad("clock that jumps")
