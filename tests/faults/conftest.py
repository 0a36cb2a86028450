"""One tiny build, its jobs as commands, and the ledger of what was done to it."""

from collections.abc import Iterator

import pytest

from tests.faults.ledger import Ledger
from tests.faults.runs import Runner, jobs_of, tree
from tests.unit.test_responses_flow import answers as answers
from tests.workflow.conftest import ROOT, Checkout
from tests.workflow.conftest import built as built

_LEDGER = pytest.StashKey[Ledger]()


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    """What was tried and what became of it; printed, and written to results/faults.json."""
    return pytestconfig.stash.setdefault(_LEDGER, Ledger())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    ledger = config.stash.get(_LEDGER, None)
    if ledger is not None:
        ledger.write(ROOT / "results/faults.json")
        terminalreporter.section("faults")
        terminalreporter.write_line("\n".join([ledger.table(), *ledger.notes]))


@pytest.fixture(scope="session")
def runner(built: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A complete build that is never changed, and its jobs."""
    logs = sorted((built.folder / ".snakemake/log").glob("*.log"))
    jobs = jobs_of("".join(log.read_text(encoding="utf-8") for log in logs))
    runner = Runner(built, jobs, tmp_path_factory.mktemp("faults"))
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
