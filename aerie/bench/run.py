"""The bench of the embedded engine: one loop, with and without the draft, on held-out prompts."""

import logging
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import aerie
from aerie.bench.result import Measured, summarise
from aerie.bench.suite import SuitePrompt, read_suite
from aerie.config import BenchSettings
from aerie.contracts import VERSIONS
from aerie.contracts.draft import check_draft
from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Layers, Sample
from aerie.engines.transformers.load import TransformersEngine
from aerie.engines.transformers.speculate import (
    Decoded,
    ServedDraft,
    Speculator,
    embedding_of,
    load_draft,
)
from aerie.engines.transformers.taps import Taps
from aerie.errors import ConfigError
from aerie.files import digest_file, write_json
from aerie.gates.accept import check_accept
from aerie.gates.serving import check_serving
from aerie.progress import Progress
from aerie.target import Target, read_target, render
from aerie.train.evaluate import simulate
from aerie.train.packing import make_pack
from aerie.train.tally import Tally
from aerie.train.weights import Weights

log = logging.getLogger("aerie")

_WARM_UP = 2


def bench(
    settings: BenchSettings,
    run: str,
    suite: str,
    suite_path: Path,
    draft_sidecar: Path,
    target_sidecar: Path,
    threads: int,
    out: Path,
) -> None:
    """Measure one draft on one suite and write the bench JSON.

    Raises:
        DataError: the suite cannot be read.
        GateError: the draft gate before, the accept gate after; the figures are kept beside `out`
            as `<suite>.failed.json`.
    """
    target = read_target(target_sidecar)
    folder = draft_sidecar.parent
    check_draft(folder, target.max_position)
    layers = Layers(
        tuple(read_sidecar(draft_sidecar, "draft")["provenance"]["layers"]["hf_hidden_states"])
    )
    prompts = read_suite(suite_path, settings.prompts_per_domain)
    engine = TransformersEngine(target, threads)
    draft = load_draft(folder, embedding_of(engine.model))
    rendered = _render(prompts, target, settings.max_new_tokens)
    with Taps(engine.model, layers) as taps:
        speculator = Speculator(engine.model, target.end_token_ids, taps, draft)
        for prompt_ids in rendered[:_WARM_UP]:
            for k in (0, settings.k):
                speculator.decode(prompt_ids, settings.max_new_tokens, k)
        check_serving(draft.states_width, draft.draft.config.aux_width)
        measured = measure(speculator, prompts, rendered, settings)
    result = summarise(measured, settings.k)
    result["simulated_accept_length"] = simulated(
        engine, draft, layers, rendered, measured, settings.k
    )
    result["equal_outputs"] |= _equality_words(result["equal_outputs"], target.dtype)
    result |= {
        "artifact": "bench",
        "contract": VERSIONS["bench"],
        "run": run,
        "suite": suite,
        "engine": "transformers",
        "k": settings.k,
        "repeats": settings.repeats,
        "sampling": {"temperature": 0, "max_new_tokens": settings.max_new_tokens},
        "digests": {
            "target": target.revision,
            "draft": digest_file(folder / "model.safetensors"),
            "suite": digest_file(suite_path),
        },
        "versions": versions(),
        "hardware": hardware(threads),
    }
    write_json(out.with_suffix(".failed.json"), result)
    check_accept(result, settings.min_accept_length, settings.simulated_tolerance)
    out.with_suffix(".failed.json").replace(out)
    log.info("%s", result["verdict"]["words"])


def measure(
    speculator: Speculator,
    prompts: Sequence[SuitePrompt],
    rendered: Sequence[list[int]],
    settings: BenchSettings,
) -> list[Measured]:
    """Decode every prompt with the draft, and the timed ones with and without it, in turn."""
    timed = set(spread(prompts, settings.timed_prompts))
    total = len(prompts) + (2 * settings.repeats - 1) * len(timed)
    measured = []
    with Progress("bench", total, "answers", "tokens") as progress:

        def decode(number: int, k: int) -> Decoded:
            decoded = speculator.decode(rendered[number], settings.max_new_tokens, k)
            progress.advance(1, len(decoded.output_ids))
            return decoded

        for number, prompt in enumerate(prompts):
            if number not in timed:
                measured.append(_counted(prompt, decode(number, settings.k), settings.k))
                continue
            plain: list[Decoded] = []
            draft: list[Decoded] = []
            for repeat in range(settings.repeats):
                # Turn and turn about, so that a slow minute of the machine hits both.
                for k in (0, settings.k) if repeat % 2 == 0 else (settings.k, 0):
                    (draft if k else plain).append(decode(number, k))
            each = _counted(prompt, draft[0], settings.k)
            each.plain_ids = plain[0].output_ids
            each.plain_seconds = [decoded.seconds for decoded in plain]
            each.draft_seconds = [decoded.seconds for decoded in draft]
            measured.append(each)
    return measured


def _counted(prompt: SuitePrompt, decoded: Decoded, k: int) -> Measured:
    tally = Tally(k, samples=1)
    for accepted, possible in zip(decoded.accepted, decoded.possible, strict=True):
        tally.count(accepted, possible)
    return Measured(prompt.id, prompt.domain, tally, decoded.output_ids)


def spread(prompts: Sequence[SuitePrompt], count: int) -> list[int]:
    """Indices of `count` prompts, taken from the domains in turn."""
    domains: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        domains.setdefault(prompt.domain, []).append(number)
    rank = {n: (place, n) for group in domains.values() for place, n in enumerate(group)}
    return sorted(sorted(rank, key=lambda n: rank[n])[:count])


def simulated(
    engine: TransformersEngine,
    draft: ServedDraft,
    layers: Layers,
    rendered: Sequence[list[int]],
    measured: Sequence[Measured],
    k: int,
) -> float:
    """Simulated accept length on the answers that were just decoded, by one forward pass each."""
    overall = Tally(k)
    weights = Weights.of(draft.draft.config, draft.draft.state_dict())
    for prompt_ids, each in zip(rendered, measured, strict=True):
        ids = [*prompt_ids, *each.output_ids]
        captured = engine.capture([ids], layers)[0]
        mask = torch.tensor([0] * len(prompt_ids) + [1] * len(each.output_ids), dtype=torch.uint8)
        sample = Sample(torch.tensor(ids, dtype=torch.int32), mask, captured.aux, captured.last)
        pack = make_pack([sample])
        if any(pack.answers):
            walks = simulate(weights, draft.embedding, draft.draft_ids, [pack], k)
            overall.add(walks[0])
    return round(overall.accept_length, 4)


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"python": platform.python_version(), "aerie": aerie.__version__, **packages}


def hardware(threads: int) -> dict[str, Any]:
    """The machine, as far as the figures depend on it."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(memory / 2**30, 1),
    }


def _render(prompts: Sequence[SuitePrompt], target: Target, max_new_tokens: int) -> list[list[int]]:
    tokenizer = target.tokenizer()
    rendered = [render(tokenizer, target, prompt.messages(), "instant") for prompt in prompts]
    for prompt, ids in zip(prompts, rendered, strict=True):
        if len(ids) + max_new_tokens > target.max_position:
            raise ConfigError(
                f"the suite's prompt {prompt.id} does not fit into the target",
                saw=f"{len(ids)} tokens and {max_new_tokens} to answer",
                expected=f"at most {target.max_position}",
                remedy="lower `bench.max_new_tokens` or shorten the prompt",
            )
    return rendered


def _equality_words(equal: dict[str, Any], dtype: str) -> dict[str, str]:
    words = (
        f"{equal['equal']} of {equal['compared']} answers equal plain greedy decoding in {dtype}"
    )
    if dtype != "float32" and equal["equal"] < equal["compared"]:
        words += (
            "; in this precision a pass over several tokens rounds differently from a pass over "
            "one, and near-ties of the target fall either way"
        )
    return {"dtype": dtype, "words": words}
