"""`aerie with-server`: one server for a whole phase, and a command that finds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from aerie.engines.sglang.settings import SglangSettings
from aerie.files import write_json
from aerie.target import Target
from tests.sglang.conftest import ROOT

# Finds the server, takes its scheduler away, and waits as a job would until it answers again.
_COMMAND = """
import os, time
import psutil
from aerie.engines.base import Request
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.wanted import Wanted
from aerie.target import read_target
from pathlib import Path
import sys

target, settings = read_target(Path(sys.argv[1])), SglangSettings.from_environment()

def answer():
    with servers(settings, Wanted.plain(target), Path("unused.log")) as fleet:
        return ask([Request([5, 6, 7], 8, 0.0, 1.0, 0)], fleet.endpoints, settings)[0].output_ids

first = answer()
owner = psutil.Process(os.getppid())
# Not this process, whose command line is this text.
servers_own = [p for p in owner.children(recursive=True) if p.pid != os.getpid()]
victims = [p for p in servers_own if "scheduler" in " ".join(p.cmdline())]
victims[0].kill()
victims[0].wait(30)
time.sleep(8)  # until the server's front has noticed
assert answer() == first
sys.exit(7)
"""


def test_a_phase_has_one_server_and_outlives_its_crash(
    tiny_target: Target, settings: SglangSettings, tmp_path: Path
) -> None:
    (tmp_path / "target").symlink_to(tiny_target.folder)
    config = tmp_path / "config.yaml"
    write_json(
        config,
        {
            "work": str(tmp_path),
            "engine": "sglang",
            "sglang": settings.model_dump(mode="json"),
            "target": {"name": "tiny", "source": {"path": str(tiny_target.folder)}},
            "datasets": {"none": {"adapter": "none", "path": "none", "take": 1}},
            "bench": {"suites": {"none": "none"}},
        },
    )
    sidecar = tiny_target.folder / "target.json"
    command = [sys.executable, "-m", "aerie", "with-server", "responses", "--config", str(config)]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", _COMMAND, str(sidecar)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("ready at") == 2
    assert (tmp_path / "logs" / "server-responses.log").exists()


@pytest.mark.parametrize("phase", ["bench", "draft"])
def test_other_phases_have_no_server(phase: str) -> None:
    command = [sys.executable, "-m", "aerie", "with-server", phase, "--", "true"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "invalid choice" in done.stderr
