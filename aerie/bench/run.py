"""The bench: with and without the draft, on held-out prompts, in the engine of the build."""

import logging
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import aerie
from aerie.bench.accept import Measured
from aerie.bench.parity import PREFIX_TOKENS, trainer_logits
from aerie.bench.render import Renderer
from aerie.bench.result import summarise
from aerie.bench.serving import ServedBench
from aerie.bench.suite import SuitePrompt, read_suite
from aerie.config import BenchSettings
from aerie.contracts import VERSIONS
from aerie.contracts.draft import check_draft
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_whole
from aerie.contracts.states import Sample
from aerie.engines import open_capture
from aerie.engines.base import Captured
from aerie.engines.sglang.settings import URLS
from aerie.engines.transformers.load import TransformersEngine
from aerie.engines.transformers.speculate import (
    Decoded,
    ServedDraft,
    Speculator,
    embedding_of,
    load_draft,
)
from aerie.engines.transformers.taps import Taps
from aerie.files import digest_file, write_sealed
from aerie.gates.accept import check_accept
from aerie.gates.parity import check_parity
from aerie.gates.serving import check_serving
from aerie.progress import Progress
from aerie.target import Target, read_target
from aerie.target_weights import read_embedding
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
    engine: str = "transformers",
    logs: Path | None = None,
) -> None:
    """Measure one draft on one suite and write the bench JSON.

    `engine` is the name of the engine; the logs of its servers go to the folder `logs`.

    Raises:
        DataError: the suite cannot be read.
        GateError: the draft gate before, the accept gate after; the figures are kept beside `out`
            as `<suite>.failed.json`.
    """
    target = read_target(target_sidecar)
    folder = draft_sidecar.parent
    check_draft(folder, target.max_position)
    layers = Layers(
        tuple(read_whole(draft_sidecar, "draft")["provenance"]["layers"]["hf_hidden_states"])
    )
    prompts = read_suite(suite_path, settings.prompts_per_domain)
    measured, simulated_length, extra = (
        _serve(target, folder, layers, prompts, settings, logs or out.with_suffix(".servers"))
        if engine == "sglang"
        else _embed(target, folder, layers, prompts, settings, threads)
    )
    result = summarise(measured, settings.k)
    result["definitions"] = result["definitions"] | extra.pop("definitions", {})
    result["simulated_accept_length"] = simulated_length
    result["equal_outputs"] |= _equality_words(result["equal_outputs"], target.dtype)
    result |= {
        "artifact": "bench",
        "contract": VERSIONS["bench"],
        "run": run,
        "suite": suite,
        "engine": engine,
        "k": settings.k,
        "concurrency": [1],
        "goal_accept_length": settings.goal_accept_length,
        "repeats": settings.repeats,
        "sampling": {"temperature": 0, "max_new_tokens": settings.max_new_tokens},
        "digests": {
            "target": target.revision,
            "draft": digest_file(folder / "model.safetensors"),
            "suite": digest_file(suite_path),
        },
        "versions": versions() | extra.pop("versions", {}),
        "hardware": hardware(threads),
        **extra,
    }
    write_sealed(out.with_suffix(".failed.json"), result)
    check_accept(result, settings.min_accept_length, settings.simulated_tolerance)
    out.with_suffix(".failed.json").replace(out)
    log.info("%s", result["verdict"]["words"])


def _embed(
    target: Target,
    folder: Path,
    layers: Layers,
    prompts: Sequence[SuitePrompt],
    settings: BenchSettings,
    threads: int,
) -> tuple[list[Measured], float, dict[str, Any]]:
    """The answers in the embedded engine, and the simulated accept length of those that count."""
    engine = TransformersEngine(target, threads)
    draft = load_draft(folder, embedding_of(engine.model))
    renderer = Renderer(target, settings)
    # All of them before any is measured: one that does not fit is known at once.
    rendered = [renderer.ids(prompt) for prompt in prompts]
    with Taps(engine.model, layers) as taps:
        speculator = Speculator(engine.model, target.end_token_ids, taps, draft)
        for prompt_ids in rendered[:_WARM_UP]:
            for k in (0, settings.k):
                speculator.decode(prompt_ids, settings.max_new_tokens, k)
        check_serving(draft.states_width, draft.draft.config.aux_width)
        parity = _parity(engine, draft, layers, rendered[0])
        measured = measure(speculator, prompts, renderer, settings)
    counted = [each for each in measured if not each.degenerate]
    states = (engine.capture([_ids(each)], layers)[0] for each in counted)
    return measured, simulated(states, draft, counted, settings.k), {"parity": parity}


def _parity(
    engine: TransformersEngine, draft: ServedDraft, layers: Layers, ids: list[int]
) -> dict[str, Any]:
    """The parity gate of the embedded engine, on the beginning of one prompt."""
    ids = ids[: PREFIX_TOKENS + 1]
    rows = len(ids) - 1
    aux = engine.capture([ids], layers)[0].aux[:rows]
    dtype = str(draft.embedding.dtype).removeprefix("torch.")
    found, expected = draft.logits(aux, ids[1:]), trainer_logits(draft, aux, ids)
    return {"rows": rows, "apart": check_parity(found, expected, dtype, rows)}


def _serve(
    target: Target,
    folder: Path,
    layers: Layers,
    prompts: Sequence[SuitePrompt],
    settings: BenchSettings,
    logs: Path,
) -> tuple[list[Measured], float, dict[str, Any]]:
    """The same by servers: one without the draft, one with it, one that captures states."""
    timed = spread(prompts, settings.timed_prompts)
    with _servers_of_our_own():
        embedding = read_embedding(target).to(getattr(torch, target.dtype))
        draft = load_draft(folder, embedding)
        bench = ServedBench(target, folder, draft, settings, prompts, timed, logs)
        measured, extra = bench.measure()
        counted = [each for each in measured if not each.degenerate]
        log_file = logs / "server-capture.log"
        with open_capture("sglang", target, layers, log_file) as stream:
            states = stream.states([_ids(each) for each in counted])
            return measured, simulated(states, draft, counted, settings.k), extra


@contextmanager
def _servers_of_our_own() -> Iterator[None]:
    """Forget servers that are given by URL: none of them can be with and without the draft."""
    given = os.environ.pop(URLS, None)
    try:
        yield
    finally:
        if given is not None:
            os.environ[URLS] = given


def _ids(each: Measured) -> list[int]:
    return [*each.prompt_ids, *each.output_ids]


def measure(
    speculator: Speculator,
    prompts: Sequence[SuitePrompt],
    renderer: Renderer,
    settings: BenchSettings,
) -> list[Measured]:
    """Decode every answer with the draft, and the timed ones with and without it, in turn.

    Of a conversation the first answer is timed, and the target's own answers are its history.
    """
    timed = set(spread(prompts, settings.timed_prompts))
    total = sum(prompt.answers for prompt in prompts) + (2 * settings.repeats - 1) * len(timed)
    measured = []
    with Progress("bench", total, "answers", "tokens") as progress:

        def decode(prompt_ids: list[int], k: int) -> Decoded:
            decoded = speculator.decode(prompt_ids, settings.max_new_tokens, k)
            progress.advance(1, len(decoded.output_ids))
            return decoded

        for number, prompt in enumerate(prompts):
            answers: list[list[int]] = []
            for turn in range(prompt.answers):
                prompt_ids = renderer.ids(prompt, answers)
                repeats = settings.repeats if number in timed and not turn else 0
                plain, draft = _decode(prompt_ids, repeats, settings.k, decode)
                each = _counted(prompt, turn, prompt_ids, draft[0], settings.k)
                if plain:
                    each.plain_ids = plain[0].output_ids
                    each.plain_seconds = [decoded.seconds for decoded in plain]
                    each.draft_seconds = [decoded.seconds for decoded in draft]
                renderer.judge(each)
                answers.append(each.output_ids)
                measured.append(each)
    return measured


def _decode(
    prompt_ids: list[int], repeats: int, k: int, decode: Callable[[list[int], int], Decoded]
) -> tuple[list[Decoded], list[Decoded]]:
    """Answers without and with the draft; once with it where nothing is timed."""
    if not repeats:
        return [], [decode(prompt_ids, k)]
    plain: list[Decoded] = []
    draft: list[Decoded] = []
    for repeat in range(repeats):
        # Turn and turn about, so that a slow minute of the machine hits both.
        for chain in (0, k) if repeat % 2 == 0 else (k, 0):
            (draft if chain else plain).append(decode(prompt_ids, chain))
    return plain, draft


def _counted(
    prompt: SuitePrompt, turn: int, prompt_ids: list[int], decoded: Decoded, k: int
) -> Measured:
    tally = Tally(k, samples=1)
    for accepted, possible in zip(decoded.accepted, decoded.possible, strict=True):
        tally.count(accepted, possible)
    return Measured(
        prompt.id if prompt.answers == 1 else f"{prompt.id}.{turn}",
        prompt.domain,
        tally,
        decoded.output_ids,
        prompt=prompt.id,
        mode=prompt.mode,
        prompt_ids=prompt_ids,
    )


def spread(prompts: Sequence[SuitePrompt], count: int) -> list[int]:
    """Indices of `count` prompts, taken from the domains in turn."""
    domains: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        domains.setdefault(prompt.domain, []).append(number)
    rank = {n: (place, n) for group in domains.values() for place, n in enumerate(group)}
    return sorted(sorted(rank, key=lambda n: rank[n])[:count])


def simulated(
    states: Iterable[Captured], draft: ServedDraft, measured: Sequence[Measured], k: int
) -> float:
    """Simulated accept length on the answers that were just decoded, from states of each."""
    overall = Tally(k)
    weights = Weights.of(draft.draft.config, draft.draft.state_dict())
    for each, captured in zip(measured, states, strict=True):
        mask = torch.tensor(
            [0] * len(each.prompt_ids) + [1] * len(each.output_ids), dtype=torch.uint8
        )
        ids = torch.tensor(_ids(each), dtype=torch.int32)
        pack = make_pack([Sample(ids, mask, captured.aux, captured.last)])
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
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gib": round(memory / 2**30, 1),
        **({"gpus": gpus} if gpus else {}),
    }


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
