"""Keeps servers full: as many requests in flight as they take, for as long as there are any."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aerie.engines.base import Answer, Refused, Request, Work
from aerie.engines.sglang.client import Client, ClientSettings, Endpoint, Reply
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import EngineError
from aerie.target import Target

T = TypeVar("T")
_Outcome = tuple[str, Answer | Refused]

# Requests that are prepared in one go, so that the first ones need not wait for all.
_CHUNK = 16
# Seconds between two calls of `settle`, at most.
_PULSE = 5.0
# Refused requests without a single answer that are taken for a fault of the set-up.
_HOPELESS = 32


@contextmanager
def open_sglang(target: Target, log: Path) -> Iterator["SglangStream"]:
    """Servers that run `target`: those that the environment names, or one that is started here.

    `log` is where that one writes. How it is started is in the environment too, in AERIE_SGLANG.

    Raises:
        ConfigError: AERIE_SGLANG is no section `sglang`.
        EngineError: the server does not start, or another one is there than is wanted.
    """
    settings = SglangSettings.from_environment()
    with servers(settings, Wanted.plain(target), log) as fleet:
        yield SglangStream(fleet.endpoints, settings, target.end_token_ids)


class SglangStream:
    """Servers that run the target, as an engine that streams."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: ClientSettings,
        end_token_ids: Sequence[int] = (),
    ) -> None:
        self._servers = (endpoints, settings, end_token_ids)

    def stream(self, work: Work) -> None:
        """Ask all of `work`, with `concurrency` requests in flight at each server.

        Raises:
            EngineError: a server cannot be brought back, or the servers refuse whatever is asked.
        """
        _run(self._stream(work))

    async def _stream(self, work: Work) -> None:
        async with Client(*self._servers) as client:
            await _Stream(work, client).run()


def ask(
    requests: Sequence[Request],
    endpoints: Sequence[Endpoint],
    settings: ClientSettings,
    end_token_ids: Sequence[int] = (),
) -> list[Reply]:
    """The reply to each of `requests`, with `concurrency` of them in flight at each server.

    Raises:
        EngineError: a request gets no answer, or a server cannot be brought back.
    """

    async def all_of_them() -> list[Reply]:
        replies: dict[int, Reply] = {}
        waiting = iter(enumerate(requests))

        async def worker(client: Client) -> None:
            for number, request in waiting:
                replies[number] = await _answered(client, f"ask{number}", request)

        # As many as can be in flight: whatever waits for a seat is woken by every reply.
        async with (
            Client(endpoints, settings, end_token_ids) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(min(client.seats, len(requests))):
                group.create_task(worker(client))
        return [replies[number] for number in range(len(requests))]

    return _run(all_of_them())


async def _answered(client: Client, name: str, request: Request) -> Reply:
    reply = await client.reply(name, request)
    if isinstance(reply, Refused):
        raise EngineError(
            f"the server does not answer request {name}", saw=reply.why, remedy="look at its log"
        )
    return reply


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except ExceptionGroup as errors:
        # Those that failed with it have the same cause.
        raise errors.exceptions[0] from None


class _Stream:
    """One worker for each request in flight, and a keeper that alone deals with the work.

    Both queues are bounded: where answers are kept slower than they come, workers wait.
    """

    def __init__(self, work: Work, client: Client) -> None:
        self._work, self._client = work, client
        self._ready: asyncio.Queue[tuple[str, Request]] = asyncio.Queue(client.seats)
        self._done: asyncio.Queue[_Outcome | EngineError] = asyncio.Queue(client.seats)
        self._open = self._in_flight = self._answered = self._refused = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._ask()) for _ in range(self._client.seats)]
            await self._keep()
            for worker in workers:
                worker.cancel()

    async def _ask(self) -> None:
        while True:
            name, request = await self._ready.get()
            self._in_flight += 1
            try:
                reply = await self._client.reply(name, request)
            except EngineError as error:
                # By way of the queue, so that the answers before it are kept.
                await self._done.put(error)
                return
            self._in_flight -= 1
            await self._done.put((name, reply if isinstance(reply, Refused) else reply.answer))

    async def _keep(self) -> None:
        await self._fill()
        while self._open:
            outcomes, errors = await self._outcomes()
            # In a thread: it syncs to the disk, and requests must not wait for that.
            await asyncio.to_thread(self._work.settle, outcomes, self._in_flight)
            if errors:
                raise errors[0]
            self._open -= len(outcomes)
            self._check(outcomes)
            await self._fill()

    async def _fill(self) -> None:
        while room := min(self._ready.maxsize - self._ready.qsize(), _CHUNK):
            taken = await asyncio.to_thread(self._work.take, room)
            self._open += len(taken)
            for entry in taken:
                self._ready.put_nowait(entry)
            if len(taken) < room:
                return

    async def _outcomes(self) -> tuple[list[_Outcome], list[EngineError]]:
        """What has come since the last time; nothing if that is nothing for a while."""
        came: list[_Outcome | EngineError] = []
        try:
            async with asyncio.timeout(_PULSE):
                came.append(await self._done.get())
        except TimeoutError:
            return [], []
        while not self._done.empty():
            came.append(self._done.get_nowait())
        errors = [one for one in came if isinstance(one, EngineError)]
        return [one for one in came if not isinstance(one, EngineError)], errors

    def _check(self, outcomes: list[_Outcome]) -> None:
        refused = [outcome for _, outcome in outcomes if isinstance(outcome, Refused)]
        self._refused += len(refused)
        self._answered += len(outcomes) - len(refused)
        if self._refused >= _HOPELESS and not self._answered:
            raise EngineError(
                f"the server refused all of the first {self._refused} requests",
                saw=refused[-1].why if refused else None,
                expected="answers",
                remedy="compare the server with the target: its model, its context length, its log",
            )
