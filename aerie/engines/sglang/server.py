"""One server: started, followed, checked, and stopped with every process that it started."""

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from aerie.engines.sglang.diagnosis import died, text_of
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import EngineError
from aerie.progress import console

_POLL_S = 1.0
_SAY_EVERY_S = 15.0
# The guard takes half of it for each of its two ways to end a server.
_STOP_S = 60.0
_ASK_S = 10.0
ROOT = Path(__file__).resolve().parents[3]
_VERSION = "import importlib.metadata as m; print(m.version('sglang'))"


def ask(url: str, path: str) -> Any | None:
    """What a server answers to GET `path`, or None if it does not, or not with 200."""
    try:
        response = httpx2.get(f"{url}{path}", timeout=_ASK_S, trust_env=False)
    except httpx2.TransportError:
        return None
    if response.status_code != httpx2.codes.OK:
        return None
    return response.json() if "json" in response.headers.get("content-type", "") else response.text


def read_info(url: str) -> dict[str, Any]:
    """`/server_info` of a server that is ready.

    Raises:
        EngineError: it does not answer with one.
    """
    info = ask(url, "/server_info")
    if not isinstance(info, dict):
        raise EngineError(
            f"{url}/server_info does not answer",
            saw=info,
            expected="JSON",
            remedy="is it an SGLang server of 0.5.13 or newer?",
        )
    return info


def installed_version(settings: SglangSettings) -> str:
    """The version of SGLang that `settings.python` has.

    Raises:
        EngineError: it has none.
    """
    try:
        done = subprocess.run(
            [settings.python, "-c", _VERSION], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        saw: object = error
    else:
        if done.returncode == 0:
            return done.stdout.strip()
        saw = done.stderr.strip().rpartition("\n")[2]
    raise EngineError(
        f"{settings.python} has no SGLang",
        saw=saw,
        remedy="run in the image that containers/images.lock.yaml names (docs/serving.md), or set "
        "`sglang.python` to the Python that has it",
    )


class Server:
    """A server of Aerie's own. `url` is where it answers, `info` its `/server_info`."""

    def __init__(self, settings: SglangSettings, wanted: Wanted, log: Path) -> None:
        self.settings, self.wanted, self.log = settings, wanted, log
        self.info: dict[str, Any] = {}
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._port = settings.port or _free_port(settings.host)
        self._version = installed_version(settings)

    @property
    def url(self) -> str:
        """Where the server answers."""
        host = "127.0.0.1" if self.settings.host == "0.0.0.0" else self.settings.host
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        """Start it, follow its log, wait until it is ready and check what it is.

        Raises:
            EngineError: it died, was not ready in time, or is not what is wanted.
            GateError: the serving gate.
        """
        command = self.wanted.command(self.settings, self._version, self._port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.wanted.probe:
            self.wanted.probe.clear()
        with self.log.open("ab") as stream:
            stream.write(f"\naerie: {shlex.join(command)}\n".encode())
            stream.flush()
            self._log_start = stream.tell()
            self._process = self._spawn(command, stream.fileno())
        self.starts += 1
        try:
            self._await_ready()
            self.info = read_info(self.url)
            self.wanted.check(self.info, self.settings, given=False)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it with every process that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether its first process lives, the one that answers."""
        return self._process is not None and self._process.poll() is None

    def revive(self) -> bool:
        """Start it again if it died or does not answer. Gives whether it did.

        Raises:
            EngineError: it cannot be started, or was started `restarts` times before.
        """
        if self.is_alive and ask(self.url, "/health") is not None:
            return False
        # A scheduler that died takes a moment to take the front with it.
        time.sleep(_POLL_S)
        if self.is_alive and ask(self.url, "/health") is not None:
            return False
        error = self.diagnosis("while it served")
        self.stop()
        if self.starts > self.settings.restarts:
            raise error
        console.print(f"{error}\nserver: starting it again", markup=False)
        self.start()
        return True

    def diagnosis(self, when: str) -> EngineError:
        """Why it died, by its log."""
        status = self._process.poll() if self._process else None
        return died(self.log, self._log_start, status, when)

    def _spawn(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "aerie.engines.sglang.guard", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=self.wanted.environment(self.settings),
            cwd=ROOT,
            # Ctrl-C reaches the owner alone, which then stops the server.
            start_new_session=True,
        )

    def _await_ready(self) -> None:
        said = _Said(self.wanted.purpose)
        deadline = time.monotonic() + self.settings.start_timeout_s
        while ask(self.url, "/health") is None:
            if not self.is_alive:
                raise self.diagnosis("before it was ready")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the server was not ready after {self.settings.start_timeout_s:.0f} s",
                    saw=f"the end of {self.log}: {_last_line(self.log, self._log_start)}",
                    remedy="raise `sglang.start_timeout_s` if it was still loading",
                )
            said.say(lambda: _last_line(self.log, self._log_start))
            time.sleep(_POLL_S)
        said.ready(self.url)


class _Said:
    """One line on how far a start is, every few seconds."""

    def __init__(self, purpose: str) -> None:
        self._title = f"server ({purpose})"
        self._start = self._last = time.monotonic()
        console.print(f"{self._title}  started", markup=False)

    def say(self, line: Callable[[], str]) -> None:
        now = time.monotonic()
        if now - self._last >= _SAY_EVERY_S:
            self._last = now
            console.print(
                f"{self._title}  {now - self._start:.0f} s  {line()}", markup=False, soft_wrap=True
            )

    def ready(self, url: str) -> None:
        seconds = time.monotonic() - self._start
        console.print(f"{self._title}  ready at {url} after {seconds:.0f} s", markup=False)


def _last_line(log: Path, start: int) -> str:
    # A progress bar rewrites its line.
    lines = [line for line in text_of(log, start).replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1].strip()[:160] if lines else ""


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
