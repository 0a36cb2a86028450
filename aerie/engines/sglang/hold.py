"""One server for a whole phase: `aerie with-server PHASE -- COMMAND`.

The command's jobs find it by their environment, so that a target of a terabyte is loaded once and
not once a job.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerie.config import Config
from aerie.contracts.layers import Layers, choose_layers
from aerie.engines.sglang.capture import new_spool
from aerie.engines.sglang.fleet import given_urls, servers
from aerie.engines.sglang.server import Server
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import ConfigError
from aerie.target import Target, read_target

PHASES = ("responses", "states")
_POLL_S = 1.0
_STOP_S = 60.0


def with_server(phase: str, config: Config, root: Path, command: Sequence[str]) -> int:
    """Run `command` beside a server for `phase` and give its exit status. `root` is the checkout.

    A server that dies is started again, and the jobs wait for it.

    Raises:
        ConfigError: the configuration has another engine.
        ContractError: the target is not there yet.
        EngineError: the server cannot be started, or died too often.
    """
    if config.engine != "sglang":
        raise ConfigError(
            "there is no server to start", saw=f"engine: {config.engine}", expected="engine: sglang"
        )
    work = root / config.work
    target = read_target(work / "target" / "target.json")
    log = work / "logs" / f"server-{phase}.log"
    with (
        _wanted(phase, target, config) as (wanted, variables),
        servers(config.sglang, wanted, log, own=True) as fleet,
    ):
        environment = {**os.environ, **variables, URLS: ",".join(fleet.urls)}
        own = [endpoint for endpoint in fleet.endpoints if isinstance(endpoint, Server)]
        return _run(command, environment, own)


@contextmanager
def capture_server(
    target: Target, layers: Layers, settings: SglangSettings, log: Path
) -> Iterator[dict[str, str]]:
    """A server that captures, for as long as the context lasts, and the variables by which jobs
    find it. None is started where the environment names one.

    Raises:
        EngineError: it cannot be started.
    """
    if given_urls():
        yield {}
        return
    spool = new_spool(target, layers, settings)
    try:
        with servers(settings, Wanted.capture(target, spool), log, own=True) as fleet:
            yield {**spool.variables(), URLS: ",".join(fleet.urls)}
    finally:
        spool.remove()


@contextmanager
def _wanted(phase: str, target: Target, config: Config) -> Iterator[tuple[Wanted, dict[str, str]]]:
    """What the server must be, and what its jobs must know besides its URL."""
    if phase == "responses":
        yield Wanted.plain(target), {}
        return
    spool = new_spool(target, choose_layers(target.layers, config.states.layers), config.sglang)
    try:
        yield Wanted.capture(target, spool), spool.variables()
    finally:
        spool.remove()


def _run(command: Sequence[str], environment: dict[str, str], own: Sequence[Server]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        try:
            while process.poll() is None:
                for server in own:
                    if not server.is_alive:
                        server.revive()
                time.sleep(_POLL_S)
        except BaseException:
            # Ctrl-C has reached the command too, and a second signal would do no harm.
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        return process.returncode
