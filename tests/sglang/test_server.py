"""Servers of Aerie's own: start, check, crash, restart, stop, and the end of their owner."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest

from aerie.engines.base import Request
from aerie.engines.sglang.fleet import GivenServer, servers
from aerie.engines.sglang.server import Server
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.wanted import Wanted
from aerie.engines.transformers.load import TransformersEngine
from aerie.errors import EngineError
from aerie.target import Target
from tests.sglang.conftest import ROOT

_PROMPTS = [[5, 6, 7], [100, 3, 41, 9, 200], list(range(50, 90))]


def _children(process: int) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(process).children(recursive=True)
    return children


def _wait_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run. A zombie does not: it waits for the machine's first process."""
    alive: list[psutil.Process] = psutil.wait_procs(processes, timeout=seconds)[1]
    return [process for process in alive if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _requests(prompts: list[list[int]]) -> list[Request]:
    return [Request(ids, max_new_tokens=12, temperature=0.0, top_p=1.0, seed=0) for ids in prompts]


def test_answers_are_the_targets_own_and_survive_a_crash(
    tiny_target: Target,
    settings: SglangSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = TransformersEngine(tiny_target, 1).generate(_requests(_PROMPTS))
    log = tmp_path / "server.log"
    with servers(settings, Wanted.plain(tiny_target), log) as fleet:
        children = _children(os.getpid())
        assert fleet.infos[0]["max_running_requests"] == settings.concurrency

        def answers() -> list[tuple[list[int], str]]:
            replies = ask(_requests(_PROMPTS), fleet.endpoints, settings, tiny_target.end_token_ids)
            return [(reply.output_ids, reply.finish_reason) for reply in replies]

        assert answers() == [(each.output_ids, each.finish_reason) for each in expected]

        # A job that is given its URL uses it, and checks what it is.
        monkeypatch.setenv(URLS, f" {fleet.urls[0]}/ ")
        with servers(settings, Wanted.plain(tiny_target), tmp_path / "none.log") as given:
            assert given.urls == fleet.urls and isinstance(given.endpoints[0], GivenServer)
        other = replace(tiny_target, dtype="bfloat16", folder=tmp_path)
        with (
            pytest.raises(EngineError, match=r"dtype float32, .*|model_path") as raised,
            servers(settings, Wanted.plain(other), tmp_path / "none.log"),
        ):
            pass
        assert "dtype bfloat16" in str(raised.value) and str(tmp_path) in str(raised.value)
        monkeypatch.delenv(URLS)

        # The scheduler is the process that a CUDA error takes down.
        schedulers = [child for child in children if "scheduler" in " ".join(child.cmdline())]
        assert schedulers
        schedulers[0].kill()
        assert answers() == [(each.output_ids, each.finish_reason) for each in expected]
        assert not _wait_gone(children, 30)
        assert "starting it again" in capsys.readouterr().err
        children = _children(os.getpid())
    assert not _wait_gone(children, 30)
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{fleet.urls[0]}/health", trust_env=False)


_OWNER = """
import sys
from pathlib import Path
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.target import read_target
import time
target = read_target(Path(sys.argv[1]))
with servers(SglangSettings.from_environment(), Wanted.plain(target), Path(sys.argv[2])) as fleet:
    print(fleet.urls[0], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_its_owner(
    tiny_target: Target, settings: SglangSettings, tmp_path: Path, how: signal.Signals
) -> None:
    command = [sys.executable, "-c", _OWNER, str(tiny_target.folder / "target.json")]
    with subprocess.Popen(
        [*command, str(tmp_path / "server.log")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        url = owner.stdout.readline().strip()
        children = _children(owner.pid)
        try:
            assert httpx2.get(f"{url}/health", trust_env=False).status_code == 200
            assert len(children) >= 3
            owner.send_signal(how)
            assert owner.wait(120) == (143 if how == signal.SIGTERM else -signal.SIGKILL)
            assert not _wait_gone(children, 60)
        finally:
            for child in _wait_gone(children, 0):
                child.kill()


@pytest.mark.parametrize(
    ("break_it", "cause"),
    [
        ("weights", "weights or files of the model are missing"),
        ("architecture", "SGLang does not know this model"),
        ("argument", "an argument is not one of this version"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    tiny_target: Target, settings: SglangSettings, tmp_path: Path, break_it: str, cause: str
) -> None:
    broken = tmp_path / "target"
    broken.mkdir()
    for file in tiny_target.folder.iterdir():
        if not (break_it == "weights" and file.suffix == ".safetensors"):
            text = file.read_bytes()
            if break_it == "architecture" and file.name == "config.json":
                text = text.replace(b"LlamaForCausalLM", b"EagleOwlForCausalLM")
            (broken / file.name).write_bytes(text)
    if break_it == "argument":
        settings = settings.model_copy(update={"arguments": (*settings.arguments, "--no-such")})
    server = Server(settings, Wanted.plain(replace(tiny_target, folder=broken)), tmp_path / "log")
    start = time.monotonic()
    try:
        with pytest.raises(EngineError, match=cause) as raised:
            server.start()
        assert "before it was ready" in str(raised.value) and "the end of" in str(raised.value)
        assert time.monotonic() - start < settings.start_timeout_s
    finally:
        server.stop()
