"""The responses phase: the target answers one part, turn by turn, and nothing is asked twice.

Conversations whose answers a dataset has from the target already are not asked at all.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.config import ResponsesSettings
from aerie.contracts.prompts import read_prompts
from aerie.contracts.responses import (
    AnswerSource,
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
from aerie.prompts.adapters import adapter
from aerie.responses.checks import AnswerChecks
from aerie.responses.journal import Journal
from aerie.responses.message import UnfitMessage
from aerie.responses.native import NativeAnswer, NativeTest
from aerie.responses.requests import (
    Ask,
    Conversation,
    batches,
    make_ask,
    native_digest,
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
    """Answers in the order of rounds, each with its place: (order of the prompt, turn).

    `claim` is the model that the dataset names for its own answers, `native` counts the
    conversations that were used, `not_native` the others by reason.
    """

    accepted: list[tuple[tuple[int, int], Response]] = field(default_factory=list)
    rejected: list[tuple[tuple[int, int], Response, ResponseReason]] = field(default_factory=list)
    claim: str | None = None
    native: int = 0
    not_native: Counter[str] = field(default_factory=Counter)

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
        ConfigError: the dataset's adapter is no longer there.
        ContractError: an input is missing or damaged.
        EngineError: the engine cannot run the target.
        GateError: the supervision gate; the rejected rows are then left beside the journal.
    """
    prompts = read_sidecar(job.prompts, "prompts")
    target = read_target(job.target)
    with Journal(job.journal) as journal:
        results = _Rounds(job, target, journal, prompts["provenance"]).run()
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
    results: _Results,
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


class _Rounds:
    """Turn 1 of all conversations, then turn 2 of those that go on, and so forth."""

    def __init__(self, job: Job, target: Target, journal: Journal, origin: dict[str, Any]) -> None:
        self._job, self._target, self._journal, self._origin = job, target, journal, origin
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
            if self._job.settings.native:
                self._take_native(conversations, progress)
            while any(conversation.turns_left for conversation in conversations):
                self._round(conversations, progress)
        return self._results

    def _take_native(self, conversations: list[Conversation], progress: Progress) -> None:
        """Take the answers that the dataset has and that pass the test; count those that fail."""
        claimed = [entry for entry in enumerate(conversations) if entry[1].prompt.native]
        if not claimed:
            return
        claim = self._results.claim = adapter(self._origin["adapter"]).native
        test = NativeTest(self._tokenizer, self._target, self._job.settings, claim)
        for order, conversation in claimed:
            try:
                answers = test.answers(conversation.prompt)
            except UnfitMessage as no:
                self._results.not_native[no.reason] += 1
                continue
            for found in answers:
                response = self._native_response(conversation, found)
                self._results.accepted.append(((order, len(conversation.answers)), response))
                conversation.answers.append(found.message.as_chat())
            self._results.native += 1
            progress.skip(len(answers))

    def _native_response(self, conversation: Conversation, found: NativeAnswer) -> Response:
        prompt = conversation.prompt
        return Response(
            id=conversation.id,
            dataset=prompt.dataset,
            part=prompt.part,
            mode=prompt.mode,
            prompt_ids=found.prompt_ids,
            output_ids=found.output_ids,
            finish_reason="stop",
            request_digest=native_digest(
                self._target, prompt.mode, found.prompt_ids, found.output_ids
            ),
            text=self._checks.text(found.output_ids),
            source=AnswerSource.DATASET,
        )

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
            said = self._checks.said(response.output_ids)
            conversation.answers.append({"role": "assistant", "content": said})
            self._results.accepted.append((place, response))
        else:
            conversation.rejected = True
            self._results.rejected.append((place, response, reason))
