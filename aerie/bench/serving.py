"""The bench of the production engine: a server without the draft, then servers with it.

Both get the same prompts, limits and concurrency, in one job on one host. They cannot take turns on
the same GPUs, so what is compared are two servers that ran one after the other; `repeats` passes of
each show how much a server varies by itself.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from aerie.bench.accept import Measured
from aerie.bench.parity import PREFIX_TOKENS, trainer_logits
from aerie.bench.render import Renderer
from aerie.bench.statistics import Bootstrap
from aerie.bench.suite import SuitePrompt
from aerie.config import BenchSettings
from aerie.engines.base import Request
from aerie.engines.sglang.client import Reply
from aerie.engines.sglang.fleet import Fleet, servers
from aerie.engines.sglang.probe import PREFIX_ROWS, Probe
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.versions import speculation
from aerie.engines.sglang.wanted import Wanted
from aerie.engines.transformers.speculate import ServedDraft
from aerie.errors import EngineError
from aerie.gates.parity import check_parity
from aerie.gates.serving import check_layers, check_serving
from aerie.progress import Progress
from aerie.target import Target
from aerie.train.tally import Tally

DEFINITIONS = {
    "tokens_per_s": "answer tokens after the first / time of the request at concurrency 1, prompts "
    "in the prefix cache by an untimed pass; median of repeats",
    "grid": "for each k and concurrency: tokens_per_s = all answer tokens / wall time of a pass, "
    "median of repeats; latency of a request in seconds; accept_length and speedup = tokens per "
    "second of request time with the draft / without, of answers that are not degenerate; "
    "round_cost = accept length / speedup",
}
# In flight at least twice as many requests as fit, so that a pass is not all start and end.
_FILL = 2
# What says nothing of a figure, or is nobody's business.
_NOT_RECORDED = frozenset(
    {"internal_states", "port", "random_seed", "startup_time", "api_key", "admin_api_key"}
    | {"ssl_keyfile_password", "watermark_key", "watermark_key_b", "launch_command"}
)


@dataclass
class _Pass:
    """Replies to the timed prompts at one concurrency, prompt by prompt in turn, and wall time."""

    replies: list[Reply]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(reply.output_ids) for reply in self.replies)


@dataclass
class Served:
    """What one kind of server did: passes by concurrency, and what it says of itself."""

    k: int
    passes: dict[int, list[_Pass]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


class ServedBench:
    """Measures one draft on one suite with servers of its own."""

    def __init__(
        self,
        target: Target,
        folder: Path,
        draft: ServedDraft,
        settings: BenchSettings,
        prompts: Sequence[SuitePrompt],
        timed: Sequence[int],
        logs: Path,
    ) -> None:
        self._target, self._folder, self._draft, self._settings = target, folder, draft, settings
        self._prompts, self._timed, self._logs = prompts, list(timed), logs
        self._renderer = Renderer(target, settings)
        self._sglang = SglangSettings.from_environment()
        self._parity: dict[str, Any] = {}

    def measure(self) -> tuple[list[Measured], dict[str, Any]]:
        """Every answer with the draft, the timed ones also without it; and the grid.

        Raises:
            EngineError: a server cannot be started or does not answer.
            GateError: the serving gate.
        """
        chains = list(dict.fromkeys([self._settings.k, *self._settings.chains]))
        levels = len(self._settings.concurrency)
        copies = sum(map(self._copies, self._settings.concurrency))
        timed = len(self._timed) * (levels and copies) * self._settings.repeats
        answers = sum(prompt.answers for prompt in self._prompts)
        total = (1 + len(chains)) * (timed + len(self._timed)) + answers
        with Progress("bench", total, "answers", "tokens") as progress:
            self._progress = progress
            with self._server(Wanted.plain(self._target)) as fleet:
                plain = self._passes(fleet, 0)
            served = []
            for k in chains:
                with self._with_draft(k) as fleet:
                    if k == self._settings.k:
                        measured = self._answers(fleet)
                    served.append(self._passes(fleet, k))
        counted = self._add_timed(plain, served[0])
        extra = {
            "concurrency": list(self._settings.concurrency),
            "grid": [
                _entry(plain, each, level, len(self._timed), counted)
                for each in served
                for level in self._settings.concurrency
            ],
            "parity": self._parity,
            "servers": {"plain": plain.info, "draft": served[0].info},
            "versions": {"sglang": served[0].info["version"]},
            "definitions": DEFINITIONS,
        }
        return measured, extra

    @contextmanager
    def _server(self, wanted: Wanted) -> Iterator[Fleet]:
        log = self._logs / f"server-{wanted.purpose}.log"
        # A bench compares two servers that differ in the draft alone: both are its own.
        with servers(self._sglang, wanted, log, own=True) as fleet:
            yield fleet

    @contextmanager
    def _with_draft(self, k: int) -> Iterator[Fleet]:
        probe = Probe(self._logs / "probe")
        wanted = Wanted.with_draft(self._target, self._folder, k, probe)
        with self._server(wanted) as fleet:
            prompt = self._renderer.ids(self._prompts[0])
            prefix = (prompt * -(-PREFIX_ROWS // len(prompt)))[:PREFIX_TOKENS]
            first = self._ask(fleet, [prefix], 1)[0].output_ids[0]
            config = self._draft.draft.config
            check_serving(probe.states_width, config.aux_width)
            check_layers(probe.layers, config.layers.hf_hidden_states)
            self._parity = self._check_parity(probe, [*prefix, first])
            yield fleet

    def _check_parity(self, probe: Probe, ids: list[int]) -> dict[str, Any]:
        """The parity gate, on the prefix `ids[:-1]` that the server has just read."""
        rows = len(ids) - 1
        aux, logits = probe.prefix or (torch.empty(0), torch.empty(0))
        if len(aux) != rows:
            raise EngineError(
                "the draft's pass over a prompt cannot be seen, so it cannot be compared",
                saw=f"{len(aux)} rows",
                expected=f"{rows}: one prompt in one pass",
                remedy=f"let `sglang.chunked_prefill` be at least {PREFIX_TOKENS}; if it is, "
                "report it with the server's version",
            )
        expected = trainer_logits(self._draft, aux, ids)
        return {"rows": rows, "apart": check_parity(logits, expected, self._target.dtype, rows)}

    def _ask(self, fleet: Fleet, prompts: Sequence[list[int]], concurrency: int) -> list[Reply]:
        requests = [Request(ids, self._settings.max_new_tokens, 0.0, 1.0, 0) for ids in prompts]
        settings = self._sglang.model_copy(update={"concurrency": concurrency})
        return ask(requests, fleet.endpoints, settings, self._target.end_token_ids)

    def _answers(self, fleet: Fleet) -> list[Measured]:
        """Every answer, turn by turn: all conversations take a turn at the same time."""
        said: list[list[list[int]]] = [[] for _ in self._prompts]
        measured: dict[tuple[int, int], Measured] = {}
        for turn in range(max(prompt.answers for prompt in self._prompts)):
            numbers = [n for n, prompt in enumerate(self._prompts) if turn < prompt.answers]
            rendered = [self._renderer.ids(self._prompts[n], said[n]) for n in numbers]
            replies = self._ask(fleet, rendered, self._sglang.concurrency)
            for number, ids, reply in zip(numbers, rendered, replies, strict=True):
                prompt = self._prompts[number]
                each = Measured(
                    prompt.id if prompt.answers == 1 else f"{prompt.id}.{turn}",
                    prompt.domain,
                    tally_of(reply, self._settings.k),
                    reply.output_ids,
                    prompt=prompt.id,
                    mode=prompt.mode,
                    prompt_ids=ids,
                )
                self._renderer.judge(each)
                measured[number, turn] = each
                said[number].append(reply.output_ids)
                self._progress.advance(1, len(reply.output_ids))
        self._first = {number: measured[number, 0] for number in self._timed}
        return [measured[place] for place in sorted(measured)]

    def _copies(self, level: int) -> int:
        return math.ceil(max(_FILL * level, 1) / len(self._timed)) if level > 1 else 1

    def _passes(self, fleet: Fleet, k: int) -> Served:
        """The timed prompts at each concurrency, `repeats` times, after one untimed pass."""
        rendered = [self._renderer.ids(self._prompts[number]) for number in self._timed]
        served = Served(k, info=_recorded(fleet.infos[0]))
        self._ask(fleet, rendered, self._sglang.concurrency)
        self._progress.advance(len(rendered), 0)
        for _ in range(self._settings.repeats):
            for level in self._settings.concurrency:
                start = time.perf_counter()
                replies = self._ask(fleet, rendered * self._copies(level), level)
                done = _Pass(replies, time.perf_counter() - start)
                served.passes.setdefault(level, []).append(done)
                self._progress.advance(len(replies), done.tokens)
        return served

    def _add_timed(self, plain: Served, draft: Served) -> list[int]:
        """Add times at the lowest concurrency, and the answers that are compared.

        Returns which of the timed prompts count: those whose answer is not degenerate.
        """
        level = min(self._settings.concurrency)
        for place, number in enumerate(self._timed):
            each = self._first[number]
            each.plain_ids = plain.passes[level][0].replies[place].output_ids
            each.output_ids = draft.passes[level][0].replies[place].output_ids
            each.tally = tally_of(draft.passes[level][0].replies[place], draft.k)
            each.plain_seconds = [done.replies[place].latency_s for done in plain.passes[level]]
            each.draft_seconds = [done.replies[place].latency_s for done in draft.passes[level]]
            self._renderer.judge(each)
        return [p for p, n in enumerate(self._timed) if not self._first[n].degenerate]


def tally_of(reply: Reply, k: int) -> Tally:
    """The rounds of one reply.

    SGLang does not say where an answer ended inside a chain: every round counts as one that could
    have kept all of its k tokens.
    """
    _, histogram = speculation(reply.meta)
    tally = Tally(k, samples=1)
    for kept, count in enumerate(histogram):
        for _ in range(count):
            tally.count(kept, k)
    return tally


def _entry(
    plain: Served, draft: Served, level: int, prompts: int, counted: Sequence[int]
) -> dict[str, Any]:
    """One row of the grid. Answers that do not count are in the rates of a pass alone."""
    counted = counted or range(prompts)
    bootstrap = Bootstrap(len(counted))
    plain_tokens, plain_s = _sums(plain.passes[level], prompts, counted)
    draft_tokens, draft_s = _sums(draft.passes[level], prompts, counted)
    tallies = [
        tally_of(reply, draft.k)
        for each in draft.passes[level]
        for place, reply in enumerate(each.replies)
        if place % prompts in counted
    ]
    rounds = sum(tally.rounds for tally in tallies)
    accept = 1 + sum(sum(tally.accepted) for tally in tallies) / max(rounds, 1)
    speedup = sum(draft_tokens) / sum(draft_s) / (sum(plain_tokens) / sum(plain_s))
    interval = bootstrap.interval(
        lambda dn, ds, pn, ps: dn / ds / (pn / ps), draft_tokens, draft_s, plain_tokens, plain_s
    )
    return {
        "k": draft.k,
        "concurrency": level,
        "plain": _side(plain.passes[level]),
        "draft": _side(draft.passes[level]),
        "accept_length": round(accept, 4),
        "speedup": round(speedup, 4),
        "speedup_ci95": [round(value, 4) for value in interval] if interval else None,
        "round_cost": round(accept / speedup, 4),
    }


def _sums(
    passes: Sequence[_Pass], prompts: int, counted: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Tokens and seconds of each prompt that counts, over all copies and passes."""
    tokens, seconds = [0.0] * prompts, [0.0] * prompts
    for each in passes:
        for place, reply in enumerate(each.replies):
            tokens[place % prompts] += len(reply.output_ids)
            seconds[place % prompts] += reply.latency_s
    return [tokens[place] for place in counted], [seconds[place] for place in counted]


def _side(passes: Sequence[_Pass]) -> dict[str, Any]:
    speeds = [each.tokens / each.seconds for each in passes]
    latencies = [reply.latency_s for each in passes for reply in each.replies]
    p50, p90, p99 = np.percentile(latencies, [50, 90, 99])
    return {
        "tokens_per_s": round(median(speeds), 2),
        "tokens_per_s_range": [round(min(speeds), 2), round(max(speeds), 2)],
        "latency_s": {"p50": round(p50, 4), "p90": round(p90, 4), "p99": round(p99, 4)},
    }


def _recorded(info: dict[str, Any]) -> dict[str, Any]:
    """The server's arguments as it resolved them, less what is unset, secret or by chance."""
    return {
        name: value
        for name, value in info.items()
        if value is not None and name not in _NOT_RECORDED
    }
