"""Every command of README, CONTRIBUTING and docs/ works, on a tiny build that is complete.

Each is run as it stands, but for names that a reader fills in; or as a dry run; or, where it needs
what is not here, its words are read as its program reads them and RUN_BY says what runs it.
"""

import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence

import pytest

from aerie.__main__ import build_parser
from aerie.config import ROOT
from tests.docs_commands import Command, commands
from tests.workflow.conftest import WORK, Checkout, add_make

pytestmark = pytest.mark.workflow

OURS = ("make", "aerie", "python", "snakemake")

# What a reader fills in, and the tiny build's own name for it.
FILLED_IN = {
    r"\[(CONFIG=\S+)\]": r"\1",
    r"\b(my|yours)\.yaml\b|\bdemo/config\.yaml\b": "config.yaml",
    r"\bresults/(my|demo)\b|(?<==)<work>|\bWORK\b(?!=)": str(WORK),
    r"<work>": str(WORK),
    r"\bLOCK\b": f"{WORK}/lock.json",
    r"\bchat\b": "first",
    r"\bbench/\w+/code\.json": "bench/main/heldout.json",
    r"--concurrency 32 --domain code": "--concurrency 1 --domain d0",
    r"\b(somebody/code-tasks|allenai/WildChat-1M|nvidia/OpenCodeInstruct)":
        "ise-uiuc/Magicoder-Evol-Instruct-110K",
    r"\b(rows\.jsonl|FOLDER_OR_FILE)": "data/first/data-evol_instruct-decontaminated.jsonl",
    r"\bPROMPTS\.json": "prompts/first/000.json",
    r"\bTARGET\.json": "target/target.json",
    # The tiny target never ends an answer, and has 512 tokens.
    r'\{"max_new_tokens": 256\}':
        '{"max_new_tokens": 12, "keep_truncated": true, "max_rejected_share": 1.0}',
    r'\{"size": 8192\}': '{"size": 128, "floor": 0.0, "dataset_floor": 0.0}',
    r"^PYTHONPATH=\. ": "",
}  # fmt: skip
# Paths of these begin in the work folder.
IN_WORK = re.compile(r"(?:^| )(target|bench|states|prompts)/\S+\.json")

# Commands whose options are read, since they need what is not here. Each says what runs them.
RUN_BY = {
    r"make (lint|test|test-workflow)$": ".ci/run",
    r"make demo$": "tests/cluster, which takes it for the undisturbed build",
    r"make test-(sglang|faults|cluster|containers)$": ".ci/run",
    r"make demo ": "tests/containers, with the same target of Snakemake",
    r"make test ": "this very run",
    r"make format$": "make lint, which checks the same",
    r"make (setup|setup-dev)\b": ".ci/run: make lint and make test call them",
    r"make all$": "tests/workflow/test_images.py: without GPUs the doctor refuses it",
    r"make all ARGS='-- <work>/sources/": "tests/workflow/test_hub.py: asks the Hub",
    r".*PROFILE=": "tests/cluster: needs a cluster",
    r"make all .*--sdm": "tests/containers",
    r"make (images|docker-all)\b": "tests/containers: needs a runtime",
    r"make images-lock$": "tests/unit/test_images.py: asks registries",
    r"make (doctor|plan|verify|lock-check|dry-run|scaling)$|make verify ARGS|make plan$":
        "the same command with CONFIG, or WORK, on this page or another",
    r"AERIE_SGLANG_URLS=|.*with-server ": "tests/sglang: needs servers",
    r"python -m sglang|PYTHONPATH=\S+ python -m sglang|python -c 'import sglang'":
        "tests/sglang: SGLang's own, in an environment of its own",
    r"python -m aerie normalise \w+/kimi_k25": "tests/unit/test_native.py: Kimi-K2.5's own records",
    r"aerie states import-map": "tests/unit/test_states_export.py: a file of another trainer",
    r"python benchmarks/dag/measure": "tests/workflow/test_scale.py",
    r"aerie bench suite": "tests/unit: a file of another format",
}  # fmt: skip
# Targets of make that start jobs here: a dry run shows that Snakemake knows what they ask for.
PLANNED = ("scaling", "map-study", "scout")
# Names of what takes options that the page gives elsewhere.
NAMES = (
    "aerie states", "aerie states export", "aerie with-server", "aerie with-server states",
    "aerie with-server PHASE -- snakemake ...", "aerie advise", "aerie advise --costs",
    "aerie bench size", "aerie verify --repair", "aerie states import-map", "python -m aerie",
    "snakemake --printshellcmds", "snakemake ... -- scout",
)  # fmt: skip


def run_by(command: Command) -> str | None:
    return next((who for what, who in RUN_BY.items() if re.match(what, command.text)), None)


def filled_in(text: str) -> str:
    for pattern, value in FILLED_IN.items():
        text = re.sub(pattern, value, text)
    return text


GIVEN = [one for one in commands() if one.words[0] in OURS and one.text not in NAMES]
# Those that differ in what a reader fills in are one.
HERE = list({filled_in(one.text): one for one in GIVEN if not run_by(one)}.values())
ELSEWHERE = [one for one in GIVEN if run_by(one)]


@pytest.fixture(scope="module")
def place(built: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny build, with make and the command `aerie`."""
    place = Checkout(tmp_path_factory.mktemp("docs") / "checkout")
    shutil.copytree(built.folder, place.folder, symlinks=True)
    shutil.copytree(ROOT / "benchmarks", place.folder / "benchmarks")
    add_make(place)
    (place.folder / "tools").mkdir()
    (place.folder / "tools/aerie").symlink_to("../scripts/aerie")
    return place


def run(place: Checkout, text: str) -> str:
    """What a command prints, in the checkout or in its work folder; the test fails if it fails."""
    folder = place.work if IN_WORK.search(text) else place.folder
    if folder == place.work:
        text = text.replace("scripts/", f"{place.folder}/scripts/")
    path = f"{place.folder}/tools:{place.folder}/.venv/bin:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=place.environment() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("command", HERE, ids=lambda one: f"{one.page}: {one.text}"[:90])
def test_it_runs(place: Checkout, command: Command) -> None:
    text = filled_in(command.text)
    if command.words[0] == "make" and command.words[1] in PLANNED:
        assert "Job stats:" in run(place, f"{text} ARGS=--dry-run")
    else:
        run(place, text)


@pytest.mark.parametrize("command", ELSEWHERE, ids=lambda one: f"{one.page}: {one.text}"[:90])
def test_its_program_understands_it(command: Command) -> None:
    understand(command.words)


def understand(words: Sequence[str]) -> None:
    """Read a command as its program does, without doing what it says."""
    if words[0] == "make":
        known = documented_variables()
        assert {word.partition("=")[0] for word in words[2:]} <= known
        done = subprocess.run(
            ["make", "--dry-run", *words[1:], "CONFIG=demo/config.yaml"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Nothing to be done" not in done.stdout, "a target without a recipe"
    elif words[0] == "aerie" or words[:3] == ["python", "-m", "aerie"]:
        options = build_parser().parse_args(words[1 if words[0] == "aerie" else 3 :])
        if hasattr(options, "command"):
            understand(options.command)
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file()


def documented_variables() -> set[str]:
    """Variables that the top of the Makefile explains."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^#   ([A-Z_]+) ", text, re.MULTILINE))


@pytest.mark.parametrize("text", [name for name in NAMES if name.startswith(("aerie", "python"))])
def test_what_is_named_exists(text: str) -> None:
    words = shlex.split(text)
    subcommands = itertools.takewhile(str.islower, words[1 if words[0] == "aerie" else 3 :])
    with pytest.raises(SystemExit) as stopped:
        build_parser().parse_args([*(word for word in subcommands if word[0] != "-"), "--help"])
    assert stopped.value.code == 0


def test_lists_name_what_the_pages_give() -> None:
    """Or what stands for a command that is gone would hide a mistake in a new one."""
    texts = [one.text for one in GIVEN]
    assert {*NAMES} <= {one.text for one in commands()}
    assert not [what for what in RUN_BY if not any(re.match(what, text) for text in texts)]
    assert len(HERE) > 30


def test_make_explains_itself(place: Checkout) -> None:
    """`make` alone names every target that a page gives."""
    explained = set(re.findall(r"make ([a-z-]+)", run(place, "make")))
    assert {one.words[1] for one in GIVEN if one.words[0] == "make"} <= explained


def test_other_programs_are_given_files_that_exist() -> None:
    for command in commands():
        if "-r" in command.words:
            assert (ROOT / command.words[command.words.index("-r") + 1]).is_file(), command
