"""One tiny build, its jobs as commands, and the ledger of what was done to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ledger import Ledger
from tests.faults.runs import Runner, jobs_of, tree
from tests.unit.test_responses_flow import answers as answers
from tests.workflow.conftest import ROOT, make_checkout


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.write(ROOT / "results/faults.json")
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line("\n" + ledger.table() + "\n" + "\n".join(ledger.notes))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Runner]:
    """A complete build that is never changed, with the time and file events of each job."""
    folder = tmp_path_factory.mktemp("faults")
    checkout = make_checkout(folder / "checkout", tiny_checkpoint)
    # Answers stay in the order of the first run, and so do the figures of the bench.
    run = checkout.snakemake("--printshellcmds")
    assert run.code == 0, run.text
    runner = Runner(checkout, jobs_of(run.text), folder)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def reference(runner: Runner) -> dict[str, str]:
    """Digests of the undisturbed build. What changes from run to run, times that is, is left out.

    Each phase is run once more, which also says how long it takes and how many file events it has.
    """
    first = tree(runner.checkout.work)
    again = runner.copy(runner.logs / "again")
    for job in runner.one_of_each():
        ended = runner.run(again, job)
        assert ended.code == 0, f"{job.name}\n{ended.text}"
        runner.seconds[job.name], runner.events[job.name] = ended.seconds, ended.events
    second = tree(again.work)
    assert set(first) == set(second)
    same = {name: digest for name, digest in first.items() if second[name] == digest}
    timed = set(first) - set(same)
    assert all(name.startswith(("bench/", "report/")) for name in timed), timed
    return same


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.faults)
