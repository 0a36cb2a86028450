"""A test double of SGLang's `/generate`: its protocol, faults, and answers that follow from ids.

The real server is tested in tests/sglang; this one does what a real one cannot be made to do.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import xxhash

Fault = Literal["drop", "die", "wrong_id", "wrong_count", "no_ids", "abort", "not_json"]
Body = dict[str, Any]


def hashed_answer(body: Body) -> list[int]:
    """2 to 9 ids that follow from the prompt and the seed; 2 is the end token."""
    seed = body["sampling_params"].get("sampling_seed", 0)
    value = xxhash.xxh3_64_intdigest(json.dumps([body["input_ids"], seed]).encode())
    return [3 + (value >> (5 * at)) % 32 for at in range(1 + value % 8)] + [2]


@dataclass
class Seen:
    """What reached the server: bodies in order, names answered, the most in flight at once."""

    bodies: list[Body] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    most: int = 0


class GenerateDouble:
    """Serves in a thread; use as a context manager. It is an endpoint, as an owned server is.

    `fault` says what goes wrong with a request (an HTTP status, or one of `Fault`) and `delay` how
    long it takes, both by name (the rid without the attempt) and attempt. `rendezvous`: nothing is
    answered unless so many requests are in flight or no more are to come.
    """

    def __init__(
        self,
        answer: Callable[[Body], list[int]] = hashed_answer,
        fault: Callable[[str, int], int | Fault | None] = lambda name, attempt: None,
        delay: Callable[[str, int], float] = lambda name, attempt: 0.0,
        rendezvous: int = 0,
        total: int = 0,
    ) -> None:
        self.answer, self.fault, self.delay = answer, fault, delay
        self.rendezvous, self.total = rendezvous, total
        self.seen, self.url, self.deaths = Seen(), "", 0
        self._in_flight = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> "GenerateDouble":
        self._loop = asyncio.new_event_loop()
        self._moved = asyncio.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def revive(self) -> bool:
        """Start again, at another port, if it has died."""
        if self._server is not None:
            return False
        self._call(self._listen())
        return True

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._die()
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _die(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split("\r\n", 1)[0])
                body = json.loads(await reader.readexactly(length))
                await self._generate(body, writer)
        self._writers.discard(writer)
        writer.close()

    async def _generate(self, body: Body, writer: asyncio.StreamWriter) -> None:
        name, _, attempt = body["rid"].rpartition("-")
        self.seen.bodies.append(body)
        await self._move(1)
        try:
            await self._meet()
            await asyncio.sleep(self.delay(name, int(attempt)))
            fault = self.fault(name, int(attempt))
            if fault == "drop":
                writer.transport.abort()
            elif fault == "die":
                self.deaths += self._server is not None
                self._die()
            elif not writer.transport.is_closing():
                # Before the client can know: it may look as soon as it has the answer.
                if fault is None:
                    self.seen.answered.append(name)
                await self._reply(writer, body, fault)
        finally:
            await self._move(-1)

    async def _move(self, change: int) -> None:
        async with self._moved:
            self._in_flight += change
            self.seen.most = max(self.seen.most, self._in_flight)
            self._moved.notify_all()

    async def _meet(self) -> None:
        async with self._moved:
            await self._moved.wait_for(
                lambda: self._in_flight >= self.rendezvous or len(self.seen.bodies) >= self.total
            )

    async def _reply(
        self, writer: asyncio.StreamWriter, body: Body, fault: int | Fault | None
    ) -> None:
        ids = self.answer(body)[: body["sampling_params"]["max_new_tokens"]]
        reason: Body = {"type": "stop", "matched": 2} if ids[-1] == 2 else {"type": "length"}
        meta = {
            "id": "another" if fault == "wrong_id" else body["rid"],
            "finish_reason": {"type": "abort", "message": "x"} if fault == "abort" else reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids) + (fault == "wrong_count"),
        }
        reply = {"output_ids": [] if fault == "no_ids" else ids, "meta_info": meta}
        content = b"<html>" if fault == "not_json" else json.dumps(reply).encode()
        status = fault if isinstance(fault, int) else 200
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
