"""What must hold for the repository as a whole: pins, paths, sizes, imports, rules and scripts."""

import ast
import functools
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from aerie.config import ROOT
from aerie.contracts import VERSIONS

REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
RULE_FILES = sorted((ROOT / "rules").glob("*.smk"))
PYTHONS = ("3.11", "3.12", "3.13")
PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.]+)(?P<marker>\s*;\s*[^#]+)?(\s+#.*)?")
HEAVY = {"torch", "transformers", "numpy", "pyarrow", "datasets", "pydantic", "snakemake", "sglang"}
NEEDS_TORCH = re.compile(
    r"aerie\.(engines\.transformers|train|bench\.(run|serving|parity)"
    r"|rolling\.(parts|room|run|store))\b"
)


@functools.cache
def _tracked() -> tuple[Path, ...]:
    """Files of the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return tuple(path for name in names.split("\0") if name and (path := ROOT / name).is_file())


def _python(*arguments: str) -> str:
    """What a fresh interpreter prints, both streams together."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line.split(" #")[0]) for line in lines if line and line[0] != "#"]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_are_exact(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    loose = [line for line in lines if line and line[0] != "#" and not PIN.fullmatch(line)]
    assert not loose


@pytest.mark.parametrize("python", PYTHONS)
def test_requirements_are_complete(python: str) -> None:
    """Every package that a pinned one requires on that Python is pinned too."""
    pins = _pins("run.txt") | _pins("dev.txt")
    unpinned = set()
    for name in pins:
        # CUDA builds of torch pin the packages of their CUDA themselves.
        for line in importlib.metadata.requires(name) or [] if name != "torch" else []:
            needed = Requirement(line)
            versions = {"python_version": python, "python_full_version": f"{python}.1"}
            if needed.marker is None or needed.marker.evaluate(versions | {"extra": ""}):
                pin = pins.get(canonicalize_name(needed.name))
                version = next(iter(pin.specifier)).version if pin else None
                if version is None or not needed.specifier.contains(version, prereleases=True):
                    unpinned.add(f"{name} needs {line}")
    assert not unpinned


def test_environment_is_the_pinned_one() -> None:
    wrong = {}
    for name, pin in (_pins("run.txt") | _pins("demo.txt")).items():
        version = importlib.metadata.version(name)
        if not pin.specifier.contains(version, prereleases=True):
            wrong[name] = f"{version}, expected {pin.specifier}: run `make setup`"
    assert not wrong


def test_files_name_no_machine() -> None:
    """No path of one machine and no registry host: the repository must work anywhere."""
    # Spelled in pieces, so that this file does not find itself.
    words = [
        "/ro" + "ot/",
        "/wo" + "rk/",
        "/ho" + "me/",
        "/op" + "t/",
        ".py" + "env",
        "xdg/" + "pip",
    ]
    words += ["python" + "hosted", "py" + "pi.org", "download.py" + "torch", "deb.de" + "bian"]
    # A path starts a word: results/demo/work/x is a place inside the checkout.
    pattern = re.compile("|".join(rf"(?<![\w.}}]){re.escape(word)}" for word in words))
    found = []
    for path in _tracked():
        if path.is_relative_to(ROOT / "demo"):  # content: what people ask about machines
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{path}:{n}: {line}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert not found


def test_files_hold_one_thing() -> None:
    """A file above 400 lines is two files."""
    folders = [ROOT / name for name in ("aerie", "scripts", "rules")]
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in _tracked()
        if path == ROOT / "Snakefile" or any(path.is_relative_to(folder) for folder in folders)
    }
    assert not {name: size for name, size in sizes.items() if size > 400}


def test_importing_aerie_loads_nothing_heavy() -> None:
    report = _python("-X", "importtime", "-c", "import aerie")
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in report.splitlines()}
    assert "aerie" in loaded
    assert not loaded & HEAVY


def test_modules_load_no_engine() -> None:
    """Only engine, trainer and bench load tensors when they are imported; others when they run."""
    names = []
    for path in sorted((ROOT / "aerie").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if parts[-1] != "__main__" and not NEEDS_TORCH.match(name):
            names.append(name)
    # Modules stay loaded, so the first that loads too much is the one to name.
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    for heavy in ('torch', 'transformers', 'datasets', 'sglang'):\n"
        "        if heavy in sys.modules:\n"
        "            sys.exit(f'importing {name} loads {heavy}')\n"
    )
    _python("-c", code)


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_rules_keep_a_log_and_a_benchmark(path: Path) -> None:
    """Every rule that runs a command says where its log and its benchmark go."""
    text = path.read_text(encoding="utf-8")
    blocks = re.split(r"^(?:rule|checkpoint) (\w+):$", text, flags=re.MULTILINE)[1:]
    lacking = [
        f"{name}: {directive}"
        for name, body in zip(blocks[::2], blocks[1::2], strict=True)
        for directive in ("log", "benchmark")
        if re.search(r"^    shell:", body, re.MULTILINE)
        and not re.search(rf"^    {directive}:", body, re.MULTILINE)
    ]
    assert not lacking


@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_rules_run_commands(path: Path) -> None:
    """`script:`, `run:` and `notebook:` would tie the work to Snakemake."""
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"^    (?:script|run|notebook|wrapper):", text, re.MULTILINE)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_explain_themselves(path: Path) -> None:
    assert "--log" in _python(str(path), "--help")


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call in the code that a build runs: where, of what, and the call."""
    for path in _tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in (
            "aerie",
            "scripts",
            "rules",
        ):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield where, ast.unparse(node.func), node


def _said(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(key.value) for key in call.keywords if key.arg == name), None)


def test_nothing_is_unpickled_but_tensors() -> None:
    free = re.compile(r"(c?pickle|dill|cloudpickle|joblib|shelve|marshal)\.(loads?|open|Unpickler)")
    found = []
    for where, name, call in _calls():
        if name == "torch.load" and _said(call, "weights_only") != "True":
            found.append(f"{where}: torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and _said(call, "allow_pickle") not in (None, "False"):
            found.append(f"{where}: {name} with pickles")
        if free.fullmatch(name):
            found.append(f"{where}: {name}")
    assert not found


def test_no_text_is_run_as_code() -> None:
    """`ast.literal_eval` builds values alone; yaml.safe_load, and no shell."""
    refused = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load",
               "yaml.unsafe_load", "yaml.full_load", "jinja2.Template", "Template"}  # fmt: skip
    found = [f"{where}: {name}" for where, name, _ in _calls() if name in refused]
    found += [
        f"{where}: a shell"
        for where, _, call in _calls()
        if _said(call, "shell") not in (None, "False")
    ]
    assert not found


def test_code_of_a_checkpoint_runs_by_configuration_alone() -> None:
    """Local files alone, which the target's revision covers, and code only where a setting says."""
    allowed = {None, "False", "trusted", "self.trust_remote_code"}
    found = []
    for where, name, call in _calls():
        if name.endswith(".from_pretrained"):
            if _said(call, "local_files_only") != "True":
                found.append(f"{where}: may fetch")
            if _said(call, "trust_remote_code") not in allowed:
                found.append(f"{where}: {_said(call, 'trust_remote_code')}")
    assert not found


def test_no_archive_is_unpacked() -> None:
    """A name inside an archive may leave the folder that it is unpacked to."""
    refused = re.compile(r".*\.(extractall|extract|unpack_archive)|tarfile\..*")
    assert not [f"{where}: {name}" for where, name, _ in _calls() if refused.fullmatch(name)]


def test_templates_of_aerie_escape_what_they_are_given() -> None:
    """The report's page; chat templates are rendered by transformers, in its sandbox."""
    made = [(where, call) for where, name, call in _calls() if name.endswith("Environment")]
    assert [_said(call, "autoescape") for _, call in made] == ["True"], made
    unescaped = [
        f"{path}:{number}"
        for path in _tracked()
        if path.suffix == ".j2" and path.is_relative_to(ROOT / "aerie")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\|\s*safe\b|autoescape", line)
    ]
    assert not unescaped


def test_contract_versions_are_used() -> None:
    """Every artifact of VERSIONS is written or asked for somewhere."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in _tracked()
        if path.suffix in {".py", ".smk"} and path.is_relative_to(ROOT / "aerie")
        if path != ROOT / "aerie" / "contracts" / "__init__.py"
    )
    assert not {artifact for artifact in VERSIONS if f'"{artifact}"' not in code}


def test_every_make_target_that_is_named_exists() -> None:
    """One that is only declared phony does nothing, and says so as if all were well."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"^([a-z][\w-]*):(?!=)", text, flags=re.MULTILINE)
    rules = set(found)
    assert len(found) == len(rules), "a rule is written twice"
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[0].split())
    assert phony - rules == set()
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("aerie/**/*.py")]
    named = {
        name
        for page in pages
        for name in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert named - rules == set()
    assert {"all", "demo", "scaling", "map-study"} <= named
