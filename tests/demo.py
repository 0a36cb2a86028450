"""The demo as this machine builds it: builds in containers and through SLURM are compared with it.

The real target, but four datasets, 30 prompts of each, answers of 16 tokens and a bench to match: a
tenth of the time. An accept length then means nothing, and its gate is open.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import made_once
from tests.workflow.conftest import COPIED, ROOT, Checkout, add_make

# Tools, code, chat and instructions. Each dataset more is five jobs, which cost a cluster a start.
_DATASETS = ("deepswe", "magicoder", "ultrachat", "infinity_instruct")
_PROMPTS = 30
_TOKENS = 16


@dataclass
class Demo(Checkout):
    """A checkout that builds the demo on two cores: the sums of a draft depend on the threads."""

    set_threads = ()

    @property
    def work(self) -> Path:
        return self.folder / "results/demo"

    def command(self, *arguments: str) -> list[str]:
        return super().command("--configfile", "demo/config.yaml", *arguments)


def copy_demo(folder: Path) -> Demo:
    """A checkout of the demo in `folder`, which is empty or new, with nothing built."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*COPIED, "demo"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    path = folder / "demo/config.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    datasets = content["datasets"]
    content["datasets"] = {name: datasets[name] | {"take": _PROMPTS} for name in _DATASETS}
    content["responses"]["max_new_tokens"] = _TOKENS
    content["bench"] |= {"max_new_tokens": _TOKENS, "repeats": 1}
    content["bench"] |= {"prompts_per_domain": 1, "timed_prompts": 2}
    content["bench"] |= {"min_accept_length": 1.0, "simulated_tolerance": 9.0}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return Demo(folder)


@pytest.fixture(scope="session")
def local_demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """What `make demo` builds here; do not change it."""

    def build(folder: Path) -> None:
        demo = copy_demo(folder)
        add_make(demo)
        done = demo.call("make", "demo", "CORES=2")
        assert done.returncode == 0, done.stdout
        assert "Report: results/demo/report/index.html" in done.stdout

    return Demo(made_once(tmp_path_factory, "demo", build))
