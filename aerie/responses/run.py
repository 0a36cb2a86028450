"""The responses phase: the target answers one part, turn by turn, and nothing is asked twice.

Conversations whose answers a dataset has from the target already are not asked at all.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.config import ResponsesSettings
from aerie.contracts.responses import (
    Response,
    ResponseReason,
    write_response_rejects,
    write_responses,
)
from aerie.contracts.sidecar import read_whole, write_sidecar
from aerie.engines import STREAMING, open_engine, open_stream
from aerie.errors import GateError
from aerie.gates.supervision import check_supervision
from aerie.progress import Progress
from aerie.responses.flow import Flow
from aerie.responses.journal import Journal
from aerie.responses.part import Part, Results
from aerie.responses.requests import sampling
from aerie.responses.rounds import Rounds
from aerie.target import Target, read_target

log = logging.getLogger("aerie")


@dataclass(frozen=True)
class Job:
    """One part to answer. `prompts`, `target` and `out` are sidecars; the files lie beside them."""

    prompts: Path
    target: Path
    settings: ResponsesSettings
    engine: str
    seed: int
    journal: Path
    out: Path
    threads: int = 1


def answer(job: Job) -> None:
    """Answer the prompts of a part and write `NNN.parquet`, `NNN.rejects.parquet`, `NNN.json`.

    Answers found in the journal are taken. An engine that streams is asked for the rest; for one
    that does not, a batch with one missing is redone whole, so that what is computed after a kill
    is what would have been computed without it.

    Raises:
        ConfigError: the dataset's adapter is no longer there.
        ContractError: an input is missing or damaged.
        EngineError: the engine cannot run the target.
        GateError: the supervision gate; the rejected rows are then left beside the journal.
    """
    prompts = read_whole(job.prompts, "prompts")
    target = read_target(job.target)
    with Journal(job.journal) as journal:
        results = _answer(job, target, journal, prompts["provenance"])
    rows, rejects = results.responses(), results.rejects()
    counts = {
        "rows": len(rows),
        "rejects": dict(sorted(Counter(str(reason) for _, reason in rejects).items())),
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "output_tokens": sum(len(row.output_ids) for row in rows),
        "native": {
            "used": results.native,
            "failed": dict(sorted(results.not_native.items())),
        },
    }
    _gate(job, prompts["provenance"], counts, rejects)
    _write(job, target, prompts, results, counts)


def _answer(job: Job, target: Target, journal: Journal, origin: dict[str, Any]) -> Results:
    part = Part(job.prompts.with_suffix(".parquet"), target, job.settings, job.seed)
    title = f"responses {job.out.parent.name}/{job.out.stem}"
    with Progress(title, part.turns_left, "answers", "tokens") as progress:
        if job.settings.native:
            part.take_native(origin, progress)
        if job.engine in STREAMING:
            flow = Flow(part, journal, progress)
            # A server is not started for nothing.
            if not flow.is_over():
                with open_stream(
                    job.engine, target, job.journal.with_suffix(".server.log")
                ) as engine:
                    engine.stream(flow)
        else:
            Rounds(
                part,
                journal,
                progress,
                lambda: open_engine(job.engine, target, job.threads),
                job.settings.batch_size,
            ).run()
    return part.results


def _gate(
    job: Job,
    origin: dict[str, Any],
    counts: dict[str, Any],
    rejects: list[tuple[Response, ResponseReason]],
) -> None:
    kept = job.journal.with_suffix(".rejects.parquet")
    kept.unlink(missing_ok=True)
    try:
        check_supervision(
            f"{origin['dataset']} part {origin['part']}",
            counts["prompt_tokens"],
            counts["output_tokens"],
            counts["rows"],
            counts["rejects"],
            job.settings,
        )
    except GateError:
        # Snakemake removes the outputs of a job that fails, and these are the evidence.
        write_response_rejects(kept, rejects)
        log.error("the rejected answers are in %s", kept)
        raise


def _write(
    job: Job,
    target: Target,
    prompts: dict[str, Any],
    results: Results,
    counts: dict[str, Any],
) -> None:
    table, rejects_table = (job.out.with_suffix(end) for end in (".parquet", ".rejects.parquet"))
    write_responses(table, results.responses())
    write_response_rejects(rejects_table, results.rejects())
    data = job.prompts.with_suffix(".parquet").name
    provenance = {
        "dataset": prompts["provenance"]["dataset"],
        "part": prompts["provenance"]["part"],
        "prompts": prompts["files"][data]["xxh3"],
        "target": target.revision,
        "dtype": target.dtype,
        "engine": job.engine,
        "sampling": sampling(job.settings, job.seed),
        "native_claim": results.claim,
    }
    write_sidecar(job.out, "responses", [table, rejects_table], counts, provenance)
