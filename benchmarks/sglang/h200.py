"""The whole build with real SGLang on one GPU: answers, capture, training, serving, each measured.

    python benchmarks/sglang/h200.py --work WORK --out RESULT.json --budget SECONDS [STEP ...]

Steps run in their order; what is done is skipped and what was begun goes on, so that the run may
be cut into calls of any length. RESULT.json is written after every step. README.md says how to
bring all that is needed onto a machine without a registry.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aerie.bench.suite import read_suite
from aerie.config import (
    ROOT,
    VocabSettings,
    load,
)
from aerie.contracts.prompts import Prompt, part_name, read_prompts, write_prompts
from aerie.contracts.responses import read_responses
from aerie.contracts.sidecar import read_sidecar, write_sidecar
from aerie.engines.base import Request
from aerie.engines.sglang.fleet import Fleet
from aerie.engines.sglang.settings import VARIABLE, SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.wanted import Wanted
from aerie.files import digest_json, read_json, write_json
from aerie.lock import git_commit
from aerie.states.settings import StatesSettings
from aerie.target import render
from aerie.target_build import build_target
from benchmarks.sglang import measure
from benchmarks.sglang.running import (
    RESPONSES,
    OutOfTime,
    Run,
    capturing,
    measured,
    serving,
    versions,
    without_capture,
)

log = logging.getLogger("aerie")

DEMO_SUITE = ROOT / "demo/suites/heldout.jsonl"
STATES = StatesSettings()
VOCAB = VocabSettings(size=16384)
# A job of each part starts anew: few, since a start costs seconds and the GPU waits.
PART = 12000
_PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"


def make_target(run: Run) -> None:
    """The demo's target, from the GGUF that a package of the index ships."""
    if not run.target_file.exists():
        build_target(load(ROOT / "demo/config.yaml").target, run.target_file.parent)


def answers(run: Run) -> None:
    """Prompts that the target writes, the client against SGLang's, and the answers to all."""
    if all(path.exists() for path in run.of_parts("responses")) and run.prompts:
        return
    with serving(run, Wanted.plain(run.target), "plain", run.options.servers) as fleet:
        if not run.prompts:
            write_parts(run, fleet)
        if "client_throughput_ratio" not in run.result:
            compare_clients(run, Fleet(fleet.endpoints[:1], fleet.infos[:1]))
        start = time.monotonic()
        for prompts, out in zip(run.prompts, run.of_parts("responses"), strict=True):
            if not out.exists():
                journal = run.work / "journals" / prompts.parent.name / f"{prompts.stem}.jsonl"
                run.script(
                    *("responses", "--prompts", prompts, "--target", run.target_file),
                    *("--settings", run.responses.as_json(), "--engine", "sglang"),
                    *("--journal", journal, "--out", out),
                )
        run.note("answers", seconds=time.monotonic() - start)
    counts = [read_sidecar(path, "responses")["counts"] for path in run.of_parts("responses")]
    totals = {
        key: sum(each[key] for each in counts) for key in ("rows", "prompt_tokens", "output_tokens")
    }
    run.note("answers", **totals)


def write_parts(run: Run, fleet: Fleet) -> None:
    """Write `--prompts`, and as many of the target's own as `--samples` lack, as parts.

    Not every turn that the target writes is new, and not every answer to one is kept.
    """
    given = [prompt for path in run.options.prompts for prompt in _given(path)]
    lacking = max(0, int(run.options.samples * run.options.margin) - len(given))
    wanted = int(lacking * run.options.repeated)
    start = time.monotonic()
    written = _written(run, fleet, wanted)
    kept_out = {turn.strip() for prompt in read_suite(DEMO_SUITE) for turn in prompt.turns}
    given = [prompt for prompt in given if kept_out.isdisjoint(map(str.strip, prompt.turns))]
    fresh = [text for text in written if text not in kept_out]
    held_out = fresh[: run.options.held_out]
    fresh = fresh[run.options.held_out :][:lacking]
    write_suite(run, held_out)
    run.note(
        "prompts", given=len(given), asked=wanted, distinct=len(fresh), held_out=len(held_out),
        seconds=time.monotonic() - start,
    )  # fmt: skip
    own = [
        Prompt(f"written-{number}", "written", text, number, "instant", None, [text])
        for number, text in enumerate(fresh)
    ]
    for dataset, prompts in (("given", given), ("written", own)):
        for part, first in enumerate(range(0, len(prompts), PART)):
            file = run.work / "prompts" / dataset / f"{part_name(part)}.parquet"
            rows = prompts[first : first + PART]
            write_prompts(file, rows)
            # HumanEval is under MIT; BFCL, the demo's rows and the model under Apache-2.0.
            licence = "MIT AND Apache-2.0" if given and dataset == "given" else "Apache-2.0"
            provenance = {"dataset": dataset, "adapter": dataset, "licence": licence}
            write_sidecar(
                file.with_suffix(".json"), "prompts", [file], {"rows": len(rows)},
                {**provenance, "part": part},
            )  # fmt: skip


def write_suite(run: Run, texts: Sequence[str]) -> None:
    """The suite: the demo's held-out prompts, and turns of the target's that are not trained on."""
    rows = [{"id": f"held-{n}", "domain": "written", "turns": [t]} for n, t in enumerate(texts)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    run.suite.write_text(DEMO_SUITE.read_text(encoding="utf-8") + "".join(lines), encoding="utf-8")


def _given(path: Path) -> list[Prompt]:
    """Prompts of a table of Aerie's, or of a benchmark's file as its package ships it."""
    if path.suffix == ".parquet":
        return read_prompts(path)
    name = path.name.partition(".")[0]
    return [
        Prompt(f"{name}-{number}", "given", each.id, number, "instant", None, each.turns)
        for number, each in enumerate(read_suite(path))
        if each.turns and not each.context
    ]


def _written(run: Run, fleet: Fleet, count: int) -> list[str]:
    """User turns that the target samples after the head of an empty one, each once."""
    target, tokenizer = run.target, run.target.tokenizer()
    ids = render(tokenizer, target, [{"role": "user", "content": _PLACE}], "instant")
    head = str(tokenizer.decode(ids)).partition(_PLACE)[0]
    start = tokenizer.encode(head, add_special_tokens=False)
    # Without a nucleus: SGLang's sampler of PyTorch sorts the whole vocabulary for one.
    requests = [Request(start, 200, 0.85, 1.0, number) for number in range(count)]
    replies = ask(requests, fleet.endpoints, run.settings, target.end_token_ids)
    whole = [reply.output_ids for reply in replies if reply.finish_reason == "stop"]
    texts = [str(tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in whole]
    return list(dict.fromkeys(text for text in texts if len(text.split()) >= 3))


def compare_clients(run: Run, fleet: Fleet) -> None:
    """Aerie's client and SGLang's benchmark client on some of the prompts."""
    tokenizer, target = run.target.tokenizer(), run.target
    first = read_prompts(run.prompts[-1].with_suffix(".parquet"))[: run.options.client_prompts]
    asked = [[{"role": "user", "content": prompt.turns[0]}] for prompt in first]
    texts = [str(tokenizer.decode(render(tokenizer, target, turns, "instant"))) for turns in asked]
    limit, repeats = run.options.new_tokens, run.options.repeats
    measured(
        run,
        "client_throughput_ratio",
        lambda: measure.client_ratio(fleet, run.settings, target, texts, limit, run.work, repeats),
    )


def capture(run: Run) -> None:
    """The states of all answers."""
    indexes = run.of_parts("states", "index.json")
    if not all(index.exists() for index in indexes):
        with capturing(run):
            start = time.monotonic()
            for responses, index in zip(run.of_parts("responses"), indexes, strict=True):
                if not index.exists():
                    run.script(
                        *("states", "--responses", responses, "--target", run.target_file),
                        *("--settings", STATES.as_json(), "--engine", "sglang", "--greedy"),
                        *("--threads", os.cpu_count() or 1, "--out", index),
                    )
            run.note("capture", seconds=time.monotonic() - start)
    counts = [read_sidecar(index, "states")["counts"] for index in indexes]
    totals = {key: sum(each[key] for each in counts) for key in ("samples", "tokens", "bytes")}
    run.note("capture", **totals)


def overhead(run: Run) -> None:
    """The same prefills on two servers that share the GPU, one of which captures; and the disk."""
    with ExitStack() as stack:
        with ThreadPoolExecutor(2) as pool:
            starts = [
                pool.submit(stack.enter_context, capturing(run)),
                pool.submit(stack.enter_context, without_capture(run)),
            ]
        (fleet, spool), plain = starts[0].result(), starts[1].result()
        some, repeats = _some(run), run.options.repeats
        measured(
            run,
            "capture_overhead",
            lambda: measure.capture_overhead(fleet, spool, plain, run.settings, some, repeats),
        )
    run.note("capture", disk_bytes_per_s=measure.disk_rate(run.work))


def _some(run: Run) -> list[list[int]]:
    """Prompts with their answers, `--capture-tokens` tokens of them."""
    some: list[list[int]] = []
    tokens = 0
    for path in run.of_parts("responses"):
        for row in read_responses(path.with_suffix(".parquet")):
            if tokens > run.options.capture_tokens:
                return some
            some.append(row.prompt_ids + row.output_ids)
            tokens += len(some[-1])
    return some


def make_map(run: Run) -> None:
    """Counts, the map, and the manifest of the states."""
    counts = run.work / "vocab/counts/all.json"
    responses = run.of_parts("responses")
    run.script("counts", "--responses", *responses, "--target", run.target_file, "--out", counts)
    run.script(
        *("map", "--counts", counts, "--target", run.target_file),
        *("--settings", VOCAB.as_json(), "--out", run.work / "vocab/map.json"),
    )
    indexes = run.of_parts("states", "index.json")
    run.script("manifest", "--states", *indexes, "--out", run.work / "states/manifest.json")


def draft(run: Run) -> None:
    """Train; a call that ends in between leaves a checkpoint."""
    out = run.work / "draft/main/draft.json"
    if not out.exists():
        start = time.monotonic()
        try:
            run.script(
                *("draft", "--settings", run.draft.as_json(), "--map", run.work / "vocab/map.json"),
                *("--states", run.work / "states/manifest.json", "--target", run.target_file),
                *("--checkpoints", run.work / "checkpoints", "--out", out),
            )
        finally:
            before = run.result.get("steps", {}).get("draft", {}).get("seconds", 0)
            run.note("draft", seconds=before + time.monotonic() - start)
    evaluation = read_json(out.with_name("eval.json"))
    run.note("draft", counts=read_sidecar(out, "draft")["counts"], epochs=evaluation["epochs"])


def bench(run: Run) -> None:
    """With the draft and without, on the held-out suite; the gate's verdict is a result too."""
    out = run.work / "bench/main/heldout.json"
    failed = out.with_suffix(".failed.json")
    if not out.exists() and not failed.exists():
        try:
            run.script(
                *("bench", "--settings", run.bench.as_json(), "--run", "main"),
                *(
                    "--suite",
                    "heldout",
                    "--prompts",
                    run.suite,
                    "--draft",
                    run.work / "draft/main/draft.json",
                ),
                *("--target", run.target_file, "--engine", "sglang", "--out", out),
            )
        except subprocess.CalledProcessError:
            # The accept gate: what was measured is kept beside.
            if not failed.exists():
                raise
    found = read_json(out if out.exists() else failed)
    run.result |= {"bench": found, "accept_gate_passed": out.exists()}
    for key in ("accept_length", "accept_length_ci95", "simulated_accept_length"):
        run.result[key] = found[key]
    # By concurrency, with intervals.
    run.result["speedup"] = found["grid"]
    run.save()


STEPS: dict[str, Callable[[Run], None]] = {
    "target": make_target,
    "answers": answers,
    "capture": capture,
    "map": make_map,
    "draft": draft,
    "bench": bench,
    "overhead": overhead,
}


def facts(settings: SglangSettings) -> dict[str, Any]:
    """Versions, machine and settings."""
    return versions(settings) | {
        "sglang_settings": settings.model_dump(mode="json"),
        "settings": {
            "responses": RESPONSES.model_dump(mode="json"),
            "states": STATES.model_dump(mode="json"),
            "vocab": VOCAB.model_dump(mode="json"),
        },
    }


def main(options: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    steps = options.steps or list(STEPS)
    if unknown := set(steps) - set(STEPS):
        raise SystemExit(f"no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    settings = SglangSettings.from_environment()
    os.environ.setdefault(VARIABLE, settings.as_json())
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / "result.json"
    result = read_json(kept) if kept.exists() else {}
    run = Run(options.work, kept, time.monotonic() + options.budget, options, settings, result)
    now = facts(settings) | {
        "commit": options.commit or git_commit(ROOT),
        "options": json.loads(json.dumps(vars(options), default=str)),
    }
    run.result.setdefault("calls", []).append(
        {"digest": digest_json(now), "steps": steps, "done": []}
    )
    run.result |= now
    try:
        for name in steps:
            if run.left < options.least:
                raise OutOfTime(f"{run.left:.0f} s are left before {name}")
            log.info("step %s, %.0f s left", name, run.left)
            STEPS[name](run)
            run.result["calls"][-1]["done"].append(name)
            run.save()
    except OutOfTime as over:
        log.info("out of time in %s: run the same command again", over)
        return 75
    finally:
        run.save()
        write_json(options.out, run.result)
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("steps", nargs="*", metavar="STEP", help=f"default: {' '.join(STEPS)}")
    arguments.add_argument("--work", type=Path, required=True, help="kept between calls")
    arguments.add_argument("--out", type=Path, required=True, help="a copy of what is known so far")
    arguments.add_argument("--budget", type=float, required=True, help="seconds of this call")
    arguments.add_argument("--least", type=float, default=60, help="seconds that a step needs")
    arguments.add_argument("--samples", type=int, default=20000, help="prompts that are answered")
    arguments.add_argument(
        "--margin", type=float, default=1.25, help="prompts for each answer that is wanted"
    )
    arguments.add_argument(
        "--repeated", type=float, default=1.3, help="user turns asked for, for each new one"
    )
    arguments.add_argument(
        "--servers", type=int, default=2, help="that answer: one is bound by its one scheduler"
    )
    arguments.add_argument(
        "--new-tokens", type=int, default=384, help="tokens of an answer at most"
    )
    arguments.add_argument("--epochs", type=int, default=8, help="of the draft's training")
    arguments.add_argument("--pack-tokens", type=int, default=8192, help="of a training step")
    arguments.add_argument("--commit", help="of this checkout, where there is no git to ask")
    arguments.add_argument("--client-prompts", type=int, default=1000)
    arguments.add_argument("--held-out", type=int, default=168, help="of the target's own turns")
    arguments.add_argument("--timed-prompts", type=int, default=32)
    arguments.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    arguments.add_argument("--capture-tokens", type=int, default=2_000_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument(
        "--prompts", type=Path, nargs="*", default=[], help="more prompts: tables, or JSONL suites"
    )
    sys.exit(main(arguments.parse_args()))
