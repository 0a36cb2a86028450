"""A test double of a capture server: HTTP and a scheduler here, the plugin and its writer for real.

States are a function of token id and position, so that a row in the wrong place is seen. The
double's batches are worse than a server's: chunks of any size, requests of others between Aerie's,
rows of decoding requests, padding at the end.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch

from aerie.engines.base import Captured
from aerie.engines.sglang.plugin import CapturePlugin
from aerie.engines.sglang.plugin_writer import RowWriter
from aerie.engines.sglang.spool import Spool

LAYERS, HIDDEN = (2, 4, 5), 4
PADDING = 3


def states_of(ids: Sequence[int]) -> Captured:
    """What the double's target thinks: bf16 [t, 3*4] and [t, 4], whole numbers below 256."""
    tokens = torch.tensor(ids, dtype=torch.float32)[:, None]
    places = torch.arange(len(ids), dtype=torch.float32)[:, None]
    columns = torch.arange(len(LAYERS) * HIDDEN)
    aux = (tokens * (columns + 1) + 7 * places) % 251
    last = (tokens + places * (columns[:HIDDEN] + 3)) % 241
    return Captured(aux.bfloat16(), last.bfloat16())


@dataclass
class Open:
    """A request that is being prefilled; `done` counts its rows."""

    rid: str
    ids: list[int]
    done: int = 0
    finished: threading.Event = field(default_factory=threading.Event)


class CaptureDouble:
    """Serves `/generate` for prefills. `chunks` gives the rows of each next forward pass."""

    def __init__(self, spool: Spool, chunks: Iterator[int]) -> None:
        self.plugin = CapturePlugin(spool, RowWriter(spool, "cpu"))
        self._chunks = chunks
        self._open: list[Open] = []
        self._changed = threading.Condition()
        self.most_tokens = 0
        self.reply: Callable[[dict[str, Any]], tuple[int, Any]] = self.prefill

    def prefill(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Prefill all that one POST asks for; returns status and answers."""
        asked = [Open(*each) for each in zip(body["rid"], body["input_ids"], strict=True)]
        with self._changed:
            self._open += asked
            self.most_tokens = max(self.most_tokens, sum(len(each.ids) for each in self._open))
            self._changed.notify_all()
        for each in asked:
            each.finished.wait()
        return 200, [self.answer(each.rid, each.ids) for each in asked]

    def answer(self, rid: str, ids: Sequence[int]) -> dict[str, Any]:
        meta = {"id": rid, "prompt_tokens": len(ids), "cached_tokens": 0, "completion_tokens": 1}
        return {"output_ids": [1], "meta_info": meta | {"finish_reason": {"type": "length"}}}

    def run(self) -> None:
        """Forward passes for ever."""
        while True:
            with self._changed:
                while not self._open:
                    self._changed.wait()
                self._forward(next(self._chunks))

    def _forward(self, budget: int) -> None:
        health = Open("HEALTH_CHECK_1", [9])
        batch: list[tuple[Open, int, int]] = [(health, 0, 1)]
        for each in self._open:
            rows = min(budget, len(each.ids) - each.done)
            if rows:
                batch.append((each, each.done, rows))
                each.done, budget = each.done + rows, budget - rows
        finished = [each for each in self._open if each.done == len(each.ids)]
        # A request that has all of its tokens is decoded once more, in a batch of its own chunk.
        batch += [(each, len(each.ids), 1) for each in finished[:1]]
        self.forward(batch)
        for each in finished:
            self._open.remove(each)
            each.finished.set()

    def forward(self, batch: Sequence[tuple[Open, int, int]]) -> None:
        """One forward pass of (request, rows before, rows), as the logits processor sees it."""
        ids, aux, last = [], [], []
        for each, start, rows in batch:
            longer = [*each.ids, 11]
            states = states_of(longer)
            ids += longer[start : start + rows]
            aux.append(states.aux[start : start + rows])
            last.append(states.last[start : start + rows])
        padding = torch.zeros(PADDING, HIDDEN, dtype=torch.bfloat16)
        joined = torch.cat([*aux, padding.repeat(1, len(LAYERS))])
        metadata = SimpleNamespace(
            rids=[each.rid for each, *_ in batch],
            input_ids=torch.tensor([*ids, *[0] * PADDING]),
            extend_prefix_lens_cpu=[start for _, start, _ in batch],
            extend_seq_lens_cpu=[rows for *_, rows in batch],
            forward_mode=SimpleNamespace(is_extend=lambda: True),
        )
        # One family of targets gives a list, another one tensor.
        parts = list(joined.split(HIDDEN, dim=-1)) if len(batch) % 2 else joined
        self.plugin.take(None, None, torch.cat([*last, padding]), None, metadata, parts)


@contextmanager
def served(double: CaptureDouble) -> Iterator[str]:
    """The URL of the double while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content = double.reply(body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=double.run, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
