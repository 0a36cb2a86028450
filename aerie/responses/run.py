"""The responses phase: the target answers one part, turn by turn, and nothing is asked twice."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import read_prompts
from aerie.contracts.responses import (
    Response,
    ResponseReason,
    write_response_rejects,
    write_responses,
)
from aerie.contracts.sidecar import read_sidecar, write_sidecar
from aerie.engines import open_engine
from aerie.engines.base import Engine
from aerie.errors import GateError
from aerie.gates.supervision import check_supervision
from aerie.progress import Progress
from aerie.responses.checks import AnswerChecks
from aerie.responses.journal import Journal
from aerie.responses.requests import (
    Ask,
    Conversation,
    batches,
    make_ask,
    render_next,
    sampling,
)
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


@dataclass
class _Results:
    """Answers in the order of rounds, each with its place: (order of the prompt, turn)."""

    accepted: list[tuple[tuple[int, int], Response]] = field(default_factory=list)
    rejected: list[tuple[tuple[int, int], Response, ResponseReason]] = field(default_factory=list)

    def responses(self) -> list[Response]:
        return [row for _, row in sorted(self.accepted, key=lambda entry: entry[0])]

    def rejects(self) -> list[tuple[Response, ResponseReason]]:
        ordered = sorted(self.rejected, key=lambda entry: entry[0])
        return [(row, reason) for _, row, reason in ordered]


def answer(job: Job) -> None:
    """Answer the prompts of a part and write `NNN.parquet`, `NNN.rejects.parquet`, `NNN.json`.

    Answers found in the journal are taken; a batch with one missing is redone whole, so that what
    is computed after a kill is what would have been computed without it.

    Raises:
        ContractError: an input is missing or damaged.
        EngineError: the engine cannot run the target.
        GateError: the supervision gate; the rejected rows are then left beside the journal.
    """
    prompts = read_sidecar(job.prompts, "prompts")
    target = read_target(job.target)
    with Journal(job.journal) as journal:
        results = _Rounds(job, target, journal).run()
    rows, rejects = results.responses(), results.rejects()
    counts = {
        "rows": len(rows),
        "rejects": dict(sorted(Counter(str(reason) for _, reason in rejects).items())),
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "output_tokens": sum(len(row.output_ids) for row in rows),
    }
    _gate(job, prompts["provenance"], counts, rejects)
    _write(job, target, prompts, rows, rejects, counts)


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
    rows: list[Response],
    rejects: list[tuple[Response, ResponseReason]],
    counts: dict[str, Any],
) -> None:
    table, rejects_table = (job.out.with_suffix(end) for end in (".parquet", ".rejects.parquet"))
    write_responses(table, rows)
    write_response_rejects(rejects_table, rejects)
    data = job.prompts.with_suffix(".parquet").name
    provenance = {
        "dataset": prompts["provenance"]["dataset"],
        "part": prompts["provenance"]["part"],
        "prompts": prompts["files"][data]["xxh3"],
        "target": target.revision,
        "dtype": target.dtype,
        "engine": job.engine,
        "sampling": sampling(job.settings, job.seed),
    }
    write_sidecar(job.out, "responses", [table, rejects_table], counts, provenance)


class _Rounds:
    """Turn 1 of all conversations, then turn 2 of those that go on, and so forth."""

    def __init__(self, job: Job, target: Target, journal: Journal) -> None:
        self._job, self._target, self._journal = job, target, journal
        self._tokenizer = target.tokenizer()
        self._checks = AnswerChecks(self._tokenizer, target, job.settings)
        self._engine: Engine | None = None
        self._results = _Results()

    def run(self) -> _Results:
        conversations = [
            Conversation(prompt)
            for prompt in read_prompts(self._job.prompts.with_suffix(".parquet"))
        ]
        total = sum(conversation.turns_left for conversation in conversations)
        title = f"responses {self._job.out.parent.name}/{self._job.out.stem}"
        with Progress(title, total, "answers", "tokens") as progress:
            while any(conversation.turns_left for conversation in conversations):
                self._round(conversations, progress)
        return self._results

    def _round(self, conversations: list[Conversation], progress: Progress) -> None:
        asked: list[tuple[int, Ask]] = []
        for order, conversation in enumerate(conversations):
            if conversation.turns_left:
                ids = render_next(conversation, self._tokenizer, self._target)
                ask = make_ask(conversation, ids, self._target, self._job.settings, self._job.seed)
                if len(ids) + self._job.settings.max_new_tokens <= self._target.max_position:
                    asked.append((order, ask))
                else:
                    progress.skip(conversation.turns_left)
                    self._judge(order, conversation, ask)
        for batch in batches([ask for _, ask in asked], self._job.settings.batch_size):
            self._answer(batch, progress)
        for order, ask in asked:
            conversation = conversations[order]
            self._judge(order, conversation, ask)
            if conversation.rejected:
                progress.skip(len(conversation.prompt.turns) - len(conversation.answers) - 1)

    def _answer(self, batch: list[Ask], progress: Progress) -> None:
        if all(ask.digest in self._journal.answers for ask in batch):
            progress.skip(len(batch))
            return
        if self._engine is None:
            self._engine = open_engine(self._job.engine, self._target, self._job.threads)
        answers = self._engine.generate([ask.request for ask in batch])
        self._journal.add(zip((ask.digest for ask in batch), answers, strict=True))
        progress.advance(len(batch), sum(len(answer.output_ids) for answer in answers))

    def _judge(self, order: int, conversation: Conversation, ask: Ask) -> None:
        prompt, place = conversation.prompt, (order, len(conversation.answers))
        found = self._journal.answers.get(ask.digest)
        response = Response(
            id=ask.id,
            dataset=prompt.dataset,
            part=prompt.part,
            mode=prompt.mode,
            prompt_ids=ask.request.prompt_ids,
            output_ids=found.output_ids if found else [],
            finish_reason=found.finish_reason if found else "length",
            request_digest=ask.digest,
            text=self._checks.text(found.output_ids) if found else "",
        )
        reason = (
            self._checks.reason(found, prompt.mode) if found else ResponseReason.PROMPT_TOO_LONG
        )
        if reason is None:
            conversation.answers.append(response.text)
            self._results.accepted.append((place, response))
        else:
            conversation.rejected = True
            self._results.rejected.append((place, response, reason))
