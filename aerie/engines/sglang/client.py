"""Requests to SGLang's `/generate`: ids in, ids out, tried again where that may help.

What may be tried again and what not follows SGLang 0.5.16 to 0.5.23 (`srt/managers/
tokenizer_manager.py`, `srt/entrypoints/http_server.py`): a request that it cannot take is HTTP 400,
one that it gave up is another status or `finish_reason.type == "abort"`.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import httpx2

from aerie.engines.base import Answer, Refused, Request
from aerie.errors import EngineError

log = logging.getLogger("aerie")

# Seconds. SGLang closes a connection that was idle for 5 s; one that is used at that moment fails.
_KEEP_ALIVE = 2.0
_CONNECT = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# Statuses below 500 that pass by themselves.
_PASSING = frozenset({408, 425, 429})
_FINISHED = frozenset({"stop", "length"})
# How much fewer requests a server gets beside one that was in flight at each more of its deaths.
_ISOLATION = 8


@dataclass(frozen=True)
class Reply:
    """What a server gave: ids with the end token, `stop` or `length`, `meta_info` as it is.

    `latency_s` is the time that the successful attempt took, in seconds.
    """

    output_ids: list[int]
    finish_reason: str
    meta: dict[str, Any]
    latency_s: float

    @property
    def answer(self) -> Answer:
        """What is kept of it."""
        return Answer(self.output_ids, self.finish_reason)


class Endpoint(Protocol):
    """A server. `url` may be another one after `revive`."""

    @property
    def url(self) -> str: ...

    def revive(self) -> bool:
        """Wait until the server is ready, and start it again if it died and is Aerie's own.

        Blocks; one thread at a time calls it. Gives whether it had been dead or out of reach.

        Raises:
            EngineError: it cannot be brought back.
        """
        ...


class ClientSettings(Protocol):
    """The keys of section `sglang` that a client goes by."""

    @property
    def concurrency(self) -> int: ...

    @property
    def request_timeout_s(self) -> float: ...

    @property
    def tries(self) -> int: ...


@dataclass
class _Server:
    """`deaths` counts how often it was brought back, `strikes` holds those of each in flight."""

    endpoint: Endpoint
    deaths: int = 0
    is_up: bool = True
    strikes: list[int] = field(default_factory=list)
    reviving: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Failure(Exception):
    """An attempt that failed; `suspicious` if the server itself may be at fault."""

    def __init__(self, why: str, *, suspicious: bool) -> None:
        super().__init__(why)
        self.suspicious = suspicious


class Client:
    """Asks one or more servers that run the same target; use as an async context manager.

    Each server has at most `concurrency` requests in flight; a request goes to the one with fewest.
    A request fails for good when the server does not take it, when `tries` attempts failed, or when
    the server died while it was alone there. One that was in flight at two deaths or more is asked
    in ever smaller company, so that the one that kills servers is found and the others are not
    blamed.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: ClientSettings,
        end_token_ids: Sequence[int] = (),
    ) -> None:
        self._settings, self._end_token_ids = settings, end_token_ids
        self._servers = [_Server(endpoint) for endpoint in endpoints]
        self._changed = asyncio.Condition()
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(settings.request_timeout_s, connect=_CONNECT, pool=None),
            limits=httpx2.Limits(keepalive_expiry=_KEEP_ALIVE),
            # A server on this network is not behind the proxy that the environment may name.
            trust_env=False,
        )

    @property
    def seats(self) -> int:
        """Requests in flight at most."""
        return self._settings.concurrency * len(self._servers)

    async def __aenter__(self) -> "Client":
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def reply(self, name: str, request: Request) -> Reply | Refused:
        """The reply to `request`. `name` is what the server's log calls it.

        Raises:
            EngineError: a server cannot be brought back.
        """
        attempt = strikes = failures = 0
        while True:
            attempt += 1
            async with self._seat(strikes) as server:
                deaths = server.deaths
                # Whoever is alone from the start is not to blame for one death, or two.
                blamed = strikes > 1 and self._company(strikes) == 1
                try:
                    return await self._ask(server, f"{name}-{attempt}", request)
                except _Failure as error:
                    failure = error
            if failure.suspicious and await self._has_died(server, deaths):
                strikes += 1
                if blamed:
                    return self._give_up(name, "the server died while it answered this alone")
                continue
            failures += 1
            if failures == self._settings.tries:
                return self._give_up(name, f"failed {failures} times; the last time: {failure}")
            # The full jitter: what failed together must not return together.
            longest = min(_FIRST_WAIT * 2**failures, _LONGEST_WAIT)
            await asyncio.sleep(random.uniform(0, longest))

    def _give_up(self, name: str, why: str) -> Refused:
        log.warning("%s: %s", name, why)
        return Refused(why)

    def _company(self, strikes: int) -> int:
        """Requests that a server may have in flight with one that has `strikes`, itself included.

        A first death blames nobody.
        """
        return int(max(1, self._settings.concurrency // _ISOLATION ** max(strikes - 1, 0)))

    @asynccontextmanager
    async def _seat(self, strikes: int) -> AsyncIterator[_Server]:
        async with self._changed:
            while (server := self._free(strikes)) is None:
                await self._changed.wait()
            server.strikes.append(strikes)
        try:
            yield server
        finally:
            server.strikes.remove(strikes)
            await self._wake()

    def _free(self, strikes: int) -> _Server | None:
        free = [
            server
            for server in self._servers
            if server.is_up and len(server.strikes) < self._company(max([strikes, *server.strikes]))
        ]
        return min(free, key=lambda server: len(server.strikes), default=None)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _has_died(self, server: _Server, deaths: int) -> bool:
        """Whether `server` died since `deaths` was its count; if so, it is up again or given up.

        Raises:
            EngineError: it cannot be brought back, and there is no other one.
        """
        async with server.reviving:
            if server.deaths == deaths:
                server.is_up = False
                try:
                    died = await asyncio.to_thread(server.endpoint.revive)
                except EngineError as error:
                    if not any(other.is_up for other in self._servers):
                        raise
                    log.error("%s\nthe other servers go on without it", error)
                    server.deaths += 1
                else:
                    server.deaths += died
                    server.is_up = True
                await self._wake()
        return server.deaths != deaths

    async def _ask(self, server: _Server, rid: str, request: Request) -> Reply | Refused:
        url = f"{server.endpoint.url}/generate"
        start = time.perf_counter()
        try:
            response = await self._http.post(url, json=payload(rid, request, self._end_token_ids))
        except httpx2.TransportError as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            raise _Failure(why, suspicious=True) from error
        if response.status_code >= 400:
            why = f"HTTP {response.status_code}: {response.text[:500]}"
            if response.status_code < 500 and response.status_code not in _PASSING:
                return self._give_up(rid, why)
            raise _Failure(why, suspicious=response.status_code >= 500)
        try:
            return read_reply(response.json(), rid, request, time.perf_counter() - start)
        except (ValueError, KeyError, TypeError) as error:
            why = f"not an answer to this request: {type(error).__name__}: {error}"
            raise _Failure(why, suspicious=False) from error


def payload(rid: str, request: Request, end_token_ids: Sequence[int]) -> dict[str, Any]:
    """The body of a request. All that decides the answer is said: servers may have other defaults.

    SGLang goes by the seed only under `--enable-deterministic-inference`.
    """
    sampling: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "ignore_eos": False,
        "stop_token_ids": list(end_token_ids),
    }
    if request.temperature > 0:
        sampling["sampling_seed"] = request.seed
    return {"rid": rid, "input_ids": request.prompt_ids, "sampling_params": sampling}


def read_reply(body: Any, rid: str, request: Request, latency_s: float) -> Reply:
    """The reply in a response's body.

    Raises:
        ValueError, KeyError, TypeError: it is none, or none to this request.
    """
    meta, ids = body["meta_info"], body["output_ids"]
    found = (meta["id"], meta["prompt_tokens"], meta["completion_tokens"])
    wanted = (rid, len(request.prompt_ids), len(ids))
    if found != wanted:
        raise ValueError(f"id, prompt and answer tokens are {found}, not {wanted}")
    kind = meta["finish_reason"]["type"]
    if kind not in _FINISHED:
        raise ValueError(f"finish_reason is {meta['finish_reason']}")
    if not ids or not all(type(id) is int for id in ids) or len(ids) > request.max_new_tokens:
        raise ValueError(f"{len(ids)} output_ids where 1 to {request.max_new_tokens} ids belong")
    return Reply(ids, kind, meta, latency_s)
