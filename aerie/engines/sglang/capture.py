"""The job's side of a capture: ids go to servers as prefills, states come back through the spool.

Nothing is tried again here. What fails ends the job, and the next run goes on at the file that was
being written.
"""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2

from aerie.contracts.layers import Layers
from aerie.engines.base import Captured
from aerie.engines.sglang.fleet import Fleet, given_urls, servers
from aerie.engines.sglang.server import Server
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.spool import FORMAT, VARIABLE, Inbox, RequestName, Spool
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import EngineError
from aerie.target import Target

# One POST carries this many tokens at most, if a sequence is not longer: a batch of a server, so
# that HTTP costs little. Several POSTs are under way, so that the server never waits for one.
_GROUP_TOKENS = 8192
_LEAST_GROUPS = 4
_GROUP_SEQUENCES = 256
# Seconds from an answer to its states, which a writer thread may have yet to write.
_WRITE_SECONDS = 120.0
_PROBE_SECONDS = 30.0
_PROBE_IDS = (1, 2, 3)
# Seconds that a server which fails takes to end.
_DYING_SECONDS = 5.0


@contextmanager
def open_sglang_capture(target: Target, layers: Layers, log: Path) -> "Iterator[SglangCapture]":
    """Capture through the servers that the environment names, or through one that is started.

    `log` is where that one writes. How it is started is in the environment too, in AERIE_SGLANG.

    Raises:
        EngineError: a server cannot be started, is another one than is wanted, or fails.
    """
    settings = SglangSettings.from_environment()
    spool = _given_spool() if given_urls() else new_spool(target, layers, settings)
    try:
        with servers(settings, Wanted.capture(target, spool), log) as fleet:
            try:
                timeout = settings.request_timeout_s
                yield SglangCapture(fleet.urls, spool, settings.capture_tokens, timeout)
            except EngineError as error:
                raise _explained(fleet, spool, error) from error
    finally:
        if not given_urls():
            spool.remove()


def new_spool(target: Target, layers: Layers, settings: SglangSettings) -> Spool:
    """A spool of its own for a server that is about to be started.

    Raises:
        EngineError: the folder cannot be made.
    """
    parent = Path(settings.spool) if settings.spool else None
    return Spool.create(parent, layers.hf_hidden_states, target.hidden_size)


def _given_spool() -> Spool:
    spool = Spool.from_environment()
    if spool is None:
        raise EngineError(
            f"servers are given by {URLS}, and their spool is not",
            expected=f"{VARIABLE} in the environment, as the servers have it",
            remedy="start them with `aerie with-server states -- COMMAND`, or see docs/states.md",
        )
    return spool


def _explained(fleet: Fleet, spool: Spool, error: EngineError) -> EngineError:
    """The error, or why the server died, if it did and has not said so itself."""
    own = [endpoint for endpoint in fleet.endpoints if isinstance(endpoint, Server)]
    if not own or spool.failures():
        return error
    deadline = time.monotonic() + _DYING_SECONDS
    while own[0].is_alive and time.monotonic() < deadline:
        time.sleep(0.1)
    return error if own[0].is_alive else own[0].diagnosis("while it captured")


@dataclass(frozen=True)
class _Group:
    """Sequences that go to a server together."""

    names: list[RequestName]
    sequences: list[Sequence[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))


class SglangCapture:
    """Captures through servers at `urls` that share `spool`.

    `ahead` tokens at most are at the servers or in the spool at a time, or one group that is more.
    """

    def __init__(self, urls: Sequence[str], spool: Spool, ahead: int, timeout: float) -> None:
        self._urls, self._spool, self._ahead, self._timeout = list(urls), spool, ahead, timeout
        self._group = min(_GROUP_TOKENS, ahead // _LEAST_GROUPS)

    def states(self, sequences: Iterable[Sequence[int]]) -> Generator[Captured, None, None]:
        """States of each sequence of token ids, in order, while the next ones are computed.

        Raises:
            EngineError: a server does not capture, fails, or gives other rows than it was asked.
        """
        threads = 2 * len(self._urls) + self._ahead // max(self._group, 1)
        with (
            Inbox(self._spool) as inbox,
            httpx2.Client(timeout=self._timeout, trust_env=False) as http,
            ThreadPoolExecutor(threads, "aerie-capture") as pool,
        ):
            self._check_servers(http, inbox)
            urls, groups = cycle(self._urls), _grouped(sequences, inbox, self._group)
            waiting: deque[tuple[_Group, Future[None]]] = deque()
            tokens, following = 0, next(groups, None)
            while waiting or following:
                while following and (not waiting or tokens + following.tokens <= self._ahead):
                    sent = pool.submit(self._send, http, next(urls), following)
                    waiting.append((following, sent))
                    tokens, following = tokens + following.tokens, next(groups, None)
                group, sent = waiting.popleft()
                sent.result()
                for name, ids in zip(group.names, group.sequences, strict=True):
                    yield _take(inbox, name, ids, _WRITE_SECONDS)
                tokens -= group.tokens

    def _check_servers(self, http: httpx2.Client, inbox: Inbox) -> None:
        """Check that each server captures what this job wants, by asking it once.

        SGLang only logs that it could not load a plugin.
        """
        wanted = (FORMAT, list(self._spool.hf_hidden_states), self._spool.hidden_size)
        markers = self._spool.markers()
        for marker in markers:
            saw = (marker["format"], marker["hf_hidden_states"], marker["hidden_size"])
            if saw != wanted:
                raise EngineError(
                    "the server captures something else than this job wants",
                    saw=f"format, layers, hidden size {saw}",
                    expected=wanted,
                    remedy="start the server again, with the same configuration as the job",
                )
        if not markers:
            raise EngineError(
                f"no server that writes to {self._spool.folder} has Aerie's plugin",
                saw="no ready-*.json",
                remedy="look for `plugin` in the server's log; docs/states.md has the causes",
            )
        for url in self._urls:
            probe = _Group([inbox.name(len(_PROBE_IDS))], [_PROBE_IDS])
            self._send(http, url, probe)
            _take(inbox, probe.names[0], _PROBE_IDS, _PROBE_SECONDS)

    def _send(self, http: httpx2.Client, url: str, group: _Group) -> None:
        body = {
            "rid": [str(name) for name in group.names],
            "input_ids": [list(ids) for ids in group.sequences],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        }
        try:
            response = http.post(f"{url}/generate", json=body)
            if response.status_code != httpx2.codes.OK:
                self._fail(url, f"HTTP {response.status_code}: {response.text[:500]}")
            answers = response.json()
            for answer, name in zip(answers, group.names, strict=True):
                _check_answer(answer["meta_info"], name)
        except httpx2.TransportError as error:
            self._fail(url, f"{type(error).__name__}: {error}")
        except (ValueError, KeyError, TypeError) as error:
            self._fail(url, f"not an answer to these requests: {error}")

    def _fail(self, url: str, saw: str) -> None:
        """Raise what went wrong: the server's own word, if the capture failed in it."""
        failures = self._spool.failures()
        raise EngineError(
            f"the capture server at {url} failed",
            saw=failures[0].strip() if failures else saw,
            remedy="read the server's log, then run the build again: it goes on at this file",
        )


def _grouped(sequences: Iterable[Sequence[int]], inbox: Inbox, tokens: int) -> Iterator[_Group]:
    group = _Group([], [])
    for ids in sequences:
        full = group.tokens + len(ids) > tokens or len(group.names) == _GROUP_SEQUENCES
        if group.names and full:
            yield group
            group = _Group([], [])
        group.names.append(inbox.name(len(ids)))
        group.sequences.append(ids)
    if group.names:
        yield group


def _check_answer(meta: dict[str, Any], name: RequestName) -> None:
    """Check that the server computed every token of a request.

    Raises:
        ValueError: it answered something else, or took tokens from its cache.
    """
    saw = (meta["id"], meta["prompt_tokens"], meta.get("cached_tokens", 0))
    expected = (str(name), name.tokens, 0)
    if saw != expected or meta["finish_reason"]["type"] not in ("length", "stop"):
        raise ValueError(
            f"id, prompt and cached tokens are {saw}, not {expected}; "
            f"finish_reason is {meta['finish_reason']}"
        )


def _take(inbox: Inbox, name: RequestName, ids: Sequence[int], seconds: float) -> Captured:
    rows = inbox.take(name, seconds)
    if rows is None:
        raise EngineError(
            f"the server answered request {name}, and its states did not come",
            saw=f"nothing in {seconds:.0f} s",
            expected=f"{name.tokens} rows",
            remedy="likely causes in order: CUDA graphs are on for prefills, which run no plugin; "
            "the spool's disk hangs; the server and the job see different folders",
        )
    if rows.token_ids.tolist() != list(ids):
        raise EngineError(
            f"the states of request {name} are those of other tokens",
            saw=rows.token_ids.tolist()[:8],
            expected=list(ids)[:8],
            remedy="report it with the server's version and arguments; it must not happen",
        )
    return Captured(rows.aux, rows.last)
