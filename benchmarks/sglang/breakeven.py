"""R(k, b) on dummy weights: the time of a round of k draft tokens, in plain decode steps.

    python benchmarks/sglang/breakeven.py SHAPE --k 1 3 --work WORK --out RESULT.json --budget S

One server for plain decoding and one for each k measure all batches; `--together` of them start
at once. RESULT.json is written after every batch and continues in the next call; `aerie advise
--costs` reads it. README.md says more.
"""

import argparse
import logging
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from aerie.config import ROOT
from aerie.engines.sglang.fleet import Fleet, servers
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.files import digest_json, read_json, write_json
from aerie.lock import git_commit
from aerie.target import Target
from benchmarks.sglang.measure import interval
from benchmarks.sglang.running import OutOfTime, versions
from benchmarks.sglang.shapes import SHAPES, write_shape

log = logging.getLogger("aerie")

# Its first tokens are the same in every request of a place, so that they are read from the cache.
_SHORT = 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Timed:
    """A batch that was answered: wall seconds, tokens and verifications of one request."""

    seconds: float
    tokens: float
    rounds: float


@dataclass
class Surface:
    """What is known of one shape, and until when it may be measured."""

    options: argparse.Namespace
    settings: SglangSettings
    target: Target
    draft: Path
    deadline: float
    result: dict[str, Any]

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def measure(self, lengths: Sequence[int]) -> None:
        """All batches of a server for each chain length of `lengths`; 0 is plain decoding.

        The servers start at the same time, which costs more than measuring does, and are
        measured one after another: one that waits keeps a core busy, and the GPU not.

        Raises:
            OutOfTime: there is none left for the servers, or for the next batch.
        """
        lengths = [k for k in lengths if self._missing(k)]
        if not lengths:
            return
        if self.left < self.options.least:
            raise OutOfTime(f"{self.left:.0f} s are left before k = {lengths}")
        with ExitStack() as stack:
            with ThreadPoolExecutor(len(lengths)) as pool:
                fleets = [*pool.map(lambda k: self._start(stack, k), lengths)]
            for k, fleet in zip(lengths, fleets, strict=True):
                self._batches(fleet.urls[0], k)

    def _missing(self, k: int) -> list[int]:
        known = self.result["servers"].get(str(k), {"batches": {}})["batches"]
        return [batch for batch in self.options.batch if str(batch) not in known]

    def _start(self, stack: ExitStack, k: int) -> Fleet:
        wanted = Wanted(self.target, draft=self.draft, k=k) if k else Wanted.plain(self.target)
        start = time.monotonic()
        log_file = self.options.work / f"logs/{self.target.name}-{k}.log"
        fleet = stack.enter_context(servers(self._settings(k), wanted, log_file, own=True))
        found = self.result["servers"].setdefault(str(k), {"batches": {}})
        found["start_s"] = round(time.monotonic() - start, 1)
        return fleet

    def _batches(self, url: str, k: int) -> None:
        found = self.result["servers"][str(k)]
        for batch in self._missing(k):
            if self.left < 0:
                raise OutOfTime(f"k = {k}, batch {batch}")
            found["batches"][str(batch)] = self._batch(url, k, batch)
            self.save()
        log.info("k = %d: %s", k, found)

    def _settings(self, k: int) -> SglangSettings:
        """The server's: whatever decides the cost of a step is the same for every k."""
        options = self.options
        most = max(options.batch)
        length = options.prompt_tokens + _SHORT + options.new_tokens
        # Dummy weights route all tokens to the same experts. The CPU has no kernel for this.
        environment = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"} | self.settings.environment
        if k:
            environment |= {
                "SGLANG_SIMULATE_ACC_LEN": str(accept_length(k)),
                "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
            }
        own = self.settings
        return own.model_copy(
            update={
                "concurrency": most,
                "context_length": own.context_length or length + 64,
                "start_timeout_s": max(min(own.start_timeout_s, self.left), 1),
                # An MHA draft's cache is far wider than MLA's, which SGLang does not reckon with.
                "arguments": (
                    *own.arguments,
                    *("--load-format", "dummy", "--skip-tokenizer-init"),
                    *("--max-total-tokens", str(2 * most * (length + 64))),
                ),
                "environment": environment,
            }
        )

    def _batch(self, url: str, k: int, batch: int) -> dict[str, Any]:
        """Seconds a step or a round: a long answer less a short one, which has the same prefill."""
        lengths = (_SHORT, _SHORT + self.options.new_tokens)
        prompts = self._prompts(batch)
        for length in lengths:
            generate(url, prompts, length)
        seconds, accepted, rates = [], [], []
        for _ in range(self.options.repeats):
            short, long = (generate(url, prompts, length) for length in lengths)
            took, tokens = long.seconds - short.seconds, long.tokens - short.tokens
            rounds = long.rounds - short.rounds if k else tokens
            seconds.append(took / rounds)
            accepted.append(tokens / rounds)
            rates.append(batch * tokens / took)
        found = {"step_s": interval(seconds), "output_tokens_per_s": interval(rates)}
        return found | ({"accept_length": statistics.fmean(accepted)} if k else {})

    def _prompts(self, batch: int) -> list[list[int]]:
        draw = random.Random(batch)
        ids = range(2, self.target.vocab_size)
        return [draw.choices(ids, k=self.options.prompt_tokens) for _ in range(batch)]

    def save(self) -> None:
        self.result["cells"] = cells(self.result["servers"])
        write_json(self.options.out, self.result)


def accept_length(k: int) -> float:
    """The accept length that is simulated: half of a chain is kept."""
    return 1 + k / 2


def generate(url: str, prompts: Sequence[list[int]], length: int) -> Timed:
    """Answer all `prompts` at once, each with `length` tokens."""
    sampling = {"max_new_tokens": length, "temperature": 0.0, "ignore_eos": True}
    body = {"input_ids": list(prompts), "sampling_params": sampling}
    start = time.perf_counter()
    response = httpx2.post(f"{url}/generate", json=body, timeout=600, trust_env=False)
    seconds = time.perf_counter() - start
    response.raise_for_status()
    metas = [reply["meta_info"] for reply in response.json()]
    return Timed(
        seconds,
        statistics.fmean(meta["completion_tokens"] for meta in metas),
        statistics.fmean(meta.get("spec_verify_ct", 0) for meta in metas),
    )


def cells(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """R of every k and batch that were measured, with the range that the repeats allow."""
    plain = measured.get("0", {"batches": {}})["batches"]
    found = []
    for k, server in sorted(measured.items(), key=lambda item: int(item[0])):
        for batch, each in sorted(server["batches"].items(), key=lambda item: int(item[0])):
            if k == "0" or batch not in plain:
                continue
            step, round_ = plain[batch]["step_s"], each["step_s"]
            found.append(
                {
                    "k": int(k),
                    "concurrency": int(batch),
                    "round_cost": round(round_["median"] / step["median"], 4),
                    "round_cost_range": [
                        round(round_["range"][0] / step["range"][1], 4),
                        round(round_["range"][1] / step["range"][0], 4),
                    ],
                }
            )
    return found


def main(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    deadline = time.monotonic() + options.budget
    settings = SglangSettings.from_environment()
    target, draft = write_shape(options.shape, options.work / "shapes", options.dtype)
    what = {
        "shape": options.shape,
        "config": read_json(target.folder / "config.json"),
        "draft": read_json(draft / "config.json"),
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "sglang_settings": settings.model_dump(mode="json"),
        # Hosts differ: what is divided by each other must come from one of them.
        "machine": digest_json(_BOOT.read_text(encoding="ascii"))[:12],
    }
    key = digest_json(what)
    result = read_json(options.out) if options.out.exists() else {}
    if result.get("key") != key:
        if result:
            log.warning("%s is of other settings or another machine: begun anew", options.out)
        result = {"servers": {}, "key": key}
    result |= what | versions(settings)
    result["commit"] = options.commit or git_commit(ROOT)
    surface = Surface(options, settings, target, draft, deadline, result)
    try:
        lengths = [0, *options.k]
        for first in range(0, len(lengths), options.together):
            surface.measure(lengths[first : first + options.together])
    except OutOfTime as over:
        log.info("out of time: %s; run the same command again", over)
        return 75
    finally:
        surface.save()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--k", type=int, nargs="+", required=True, help="a server each")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--work", type=Path, required=True, help="shapes and logs of servers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds of this call")
    parser.add_argument("--least", type=float, default=90, help="seconds that a server needs")
    parser.add_argument("--together", type=int, default=1, help="servers that fit on the GPU")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=256, help="tokens that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--commit", help="of this checkout, where there is no git to ask")
    sys.exit(main(parser.parse_args()))
