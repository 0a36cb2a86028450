"""What the H200 run measures itself: the client against SGLang's own, capture against prefill."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from aerie.engines.base import Request
from aerie.engines.sglang import capture
from aerie.engines.sglang.capture import SglangCapture
from aerie.engines.sglang.fleet import Fleet
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.spool import Spool
from aerie.engines.sglang.stream import ask
from aerie.target import Target

# Prefills in flight, as a capture has them.
_GROUPS = 8
_DISK_BYTES = 4_000_000_000


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of repeats in one run: how far a figure moves on this machine."""
    middle = statistics.median(values)
    return {"median": middle, "range": [min(values), max(values)], "values": list(values)}


def client_ratio(
    fleet: Fleet, settings: SglangSettings, target: Target, texts: Sequence[str],
    new_tokens: int, folder: Path, repeats: int,
) -> dict[str, Any]:  # fmt: skip
    """Output tokens/s of Aerie's client over those of SGLang's benchmark client, in turn.

    Both answer the same rendered prompts greedily, to the end token or `new_tokens`.
    """
    dataset = folder / "client.jsonl"
    # The benchmark takes prompts from conversations; the second turn only says how long at most.
    rows = [
        {"conversations": [{"value": text}, {"value": "none of this is used"}]} for text in texts
    ]
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = target.tokenizer()
    requests = [
        Request(tokenizer.encode(text, add_special_tokens=False), new_tokens, 0.0, 1.0, 0)
        for text in texts
    ]
    ours, theirs = [], []
    for number in range(repeats):
        _flush(fleet)
        start = time.monotonic()
        replies = ask(requests, fleet.endpoints, settings, target.end_token_ids)
        tokens = sum(len(reply.output_ids) for reply in replies)
        ours.append(tokens / (time.monotonic() - start))
        _flush(fleet)
        theirs.append(_peer(fleet, settings, dataset, len(texts), new_tokens, folder, number))
    ratios = [own / peer for own, peer in zip(ours, theirs, strict=True)]
    return {
        "client_throughput_ratio": interval(ratios),
        "output_tokens_per_s": {"aerie": interval(ours), "sglang": interval(theirs)},
        "prompts": len(texts),
        "concurrency": settings.concurrency,
        "max_new_tokens": new_tokens,
    }


def _peer(
    fleet: Fleet, settings: SglangSettings, dataset: Path, prompts: int, new_tokens: int,
    folder: Path, number: int,
) -> float:  # fmt: skip
    out = folder / f"peer-{number}.jsonl"
    out.unlink(missing_ok=True)
    command = [
        *(settings.python, "-m", "sglang.bench_serving", "--backend", "sglang"),
        *("--base-url", fleet.urls[0], "--dataset-name", "custom", "--dataset-path", str(dataset)),
        *("--num-prompts", str(prompts), "--max-concurrency", str(settings.concurrency)),
        *("--sharegpt-output-len", str(new_tokens), "--disable-ignore-eos"),
        *("--warmup-requests", "0", "--output-file", str(out)),
    ]
    environment = {**os.environ, **settings.environment}
    paths = [str(_without_datasets(folder)), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with (folder / "logs/peer.log").open("ab") as log:
        subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)
    result = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    return float(result["output_throughput"])


def _without_datasets(folder: Path) -> Path:
    """A folder with an empty `datasets`: the benchmark imports it, for prompts of another kind."""
    shim = folder / "shim/datasets.py"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text("load_dataset = None\n", encoding="utf-8")
    return shim.parent


def _flush(fleet: Fleet) -> None:
    for url in fleet.urls:
        httpx2.post(f"{url}/flush_cache", timeout=60, trust_env=False).raise_for_status()


def capture_overhead(
    capturing: Fleet, spool: Spool, plain: Fleet, settings: SglangSettings,
    sequences: Sequence[list[int]], repeats: int,
) -> dict[str, Any]:  # fmt: skip
    """What capture costs: prefills whose states are taken, and the same on a plain server, in turn.

    The rows are read from the spool and dropped: what writing them costs is measured apart.
    """
    reader = SglangCapture(capturing.urls, spool, settings.capture_tokens, 600.0)
    tokens = sum(map(len, sequences))

    def captured() -> None:
        for _ in reader.states(sequences):
            pass

    with_, without = [], []
    # One more, since the first compiles and allocates.
    for _ in range(repeats + 1):
        with_.append(tokens / _seconds(captured))
        without.append(tokens / _seconds(lambda: prefill(plain.urls[0], sequences)))
    same = ("chunked_prefill_size", "max_prefill_tokens", "max_running_requests", "dtype")
    infos = (capturing.infos[0], plain.infos[0])
    sides = {name: tuple(info.get(name) for info in infos) for name in same}
    overhead = [1 - taken / left for taken, left in zip(with_[1:], without[1:], strict=True)]
    return {
        "capture_overhead": interval(overhead),
        "prefill_tokens_per_s": {"capture": interval(with_[1:]), "plain": interval(without[1:])},
        "tokens": tokens,
        "sequences": len(sequences),
        "differing_arguments": {name: each for name, each in sides.items() if each[0] != each[1]},
    }


def _seconds(run: Callable[[], None]) -> float:
    start = time.monotonic()
    run()
    return time.monotonic() - start


def prefill(url: str, sequences: Sequence[list[int]]) -> None:
    """Prefill all sequences in the same groups as a capture, as requests of nobody."""
    names = count()
    groups: list[list[list[int]]] = [[]]
    for ids in sequences:
        if sum(map(len, groups[-1])) + len(ids) > capture._GROUP_TOKENS:
            groups.append([])
        groups[-1].append(ids)

    def send(group: list[list[int]]) -> None:
        body = {
            "rid": [f"plain-{os.getpid()}-{next(names)}-{time.monotonic_ns()}" for _ in group],
            "input_ids": group,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        }
        http.post(f"{url}/generate", json=body).raise_for_status()

    with httpx2.Client(timeout=600, trust_env=False) as http, ThreadPoolExecutor(_GROUPS) as pool:
        list(pool.map(send, filter(None, groups)))


def disk_rate(folder: Path) -> float:
    """Bytes/s of one file written in blocks of 16 MiB and synced: the floor of the writer."""
    path = folder / "disk.bin"
    block = os.urandom(1 << 24)
    start = time.monotonic()
    with path.open("wb") as stream:
        for _ in range(_DISK_BYTES // len(block)):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    rate = path.stat().st_size / (time.monotonic() - start)
    path.unlink()
    return rate
