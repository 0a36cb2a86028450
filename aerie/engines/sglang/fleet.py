"""Who owns the servers: the job that finds none, or whoever names them in AERIE_SGLANG_URLS."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from aerie.engines.sglang.client import Endpoint
from aerie.engines.sglang.server import Server, ask, read_info
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import EngineError

_POLL_S = 1.0


class GivenServer:
    """A server that someone else owns: it is waited for and never started."""

    def __init__(self, url: str, settings: SglangSettings) -> None:
        self.url = url
        self._settings = settings

    def revive(self) -> bool:
        """Wait until it answers. Gives whether it had not.

        Raises:
            EngineError: it does not within `start_timeout_s`.
        """
        deadline = time.monotonic() + self._settings.start_timeout_s
        waited = False
        while ask(self.url, "/health") is None:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the server at {self.url} does not answer",
                    expected=f"200 from {self.url}/health within "
                    f"{self._settings.start_timeout_s:.0f} s",
                    remedy=f"start it, or unset {URLS}: Aerie then starts one",
                )
            waited = True
            time.sleep(_POLL_S)
        return waited


@dataclass(frozen=True)
class Fleet:
    """Servers that are ready and checked, and what each says of itself."""

    endpoints: Sequence[Endpoint]
    infos: list[dict[str, Any]]

    @property
    def urls(self) -> list[str]:
        """Where they answer."""
        return [endpoint.url for endpoint in self.endpoints]


def given_urls() -> list[str]:
    """The servers that the environment names."""
    return [url.strip().rstrip("/") for url in os.environ.get(URLS, "").split(",") if url.strip()]


@contextmanager
def servers(
    settings: SglangSettings, wanted: Wanted, log: Path, *, own: bool = False
) -> Iterator[Fleet]:
    """The servers that the environment names, or one that is started here and stopped at the end.

    With `own`, one is started whatever the environment says.

    Raises:
        EngineError: one cannot be started or is not what is wanted.
        GateError: the serving gate.
    """
    urls = [] if own else given_urls()
    if urls:
        given = [GivenServer(url, settings) for url in urls]
        for server in given:
            server.revive()
        infos = [read_info(url) for url in urls]
        for info in infos:
            wanted.check(info, settings, given=True)
        yield Fleet(given, infos)
        return
    server_of_our_own = Server(settings, wanted, log)
    with _terminable():
        try:
            server_of_our_own.start()
            yield Fleet([server_of_our_own], [server_of_our_own.info])
        finally:
            server_of_our_own.stop()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that a server is stopped and not only killed."""
    plain = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not plain or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
