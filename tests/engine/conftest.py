"""A small build of the library's own functions: a tiny target's answers, states, map and draft."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerie.config import VocabSettings
from aerie.contracts.responses import Response, write_responses
from aerie.contracts.sidecar import write_sidecar
from aerie.engines import open_engine
from aerie.engines.base import Request
from aerie.files import canonical_json
from aerie.states.manifest import write_manifest
from aerie.states.run import capture_part
from aerie.states.settings import StatesSettings
from aerie.target import Target, render
from aerie.train.run import train
from aerie.train.settings import DraftSettings
from aerie.train.source import TrainingSource
from aerie.vocab.counts import count_dataset
from aerie.vocab.map import make_map

WORDS = ("bird", "nest", "cliff", "wing", "list", "number", "answer", "token")
QUESTIONS = [f"What is the {first} of a {second}?" for first in WORDS for second in WORDS]
SETTINGS = DraftSettings(
    steps=3, epochs=12, learning_rate=0.004, pack_tokens=512, eval_share=0.1, dtype="float32",
    checkpoint_every=7,
)  # fmt: skip


VOCAB = VocabSettings(size=128, floor=0.5, dataset_floor=0.5)


@dataclass(frozen=True)
class Raised:
    """Where everything lies."""

    folder: Path
    target: Path
    states: Path
    map: Path
    draft: Path
    suite: Path

    def train(self, out: Path, settings: DraftSettings = SETTINGS) -> Path:
        """Train on the same states and map into another folder; returns the sidecar."""
        sidecar = out / "draft/draft.json"
        train(
            settings,
            TrainingSource.of_manifest(self.states),
            self.map,
            self.target,
            out / "checkpoints",
            sidecar,
        )
        return sidecar


@pytest.fixture(scope="session")
def raised(tmp_path_factory: pytest.TempPathFactory, tiny_target: Target) -> Raised:
    """Answers of the tiny target to 64 questions, and a draft that has learnt them."""
    made = raise_draft(tmp_path_factory.mktemp("raised"), tiny_target, QUESTIONS, 40, VOCAB)
    made.train(made.folder)
    return made


def raise_draft(
    folder: Path, target: Target, questions: Sequence[str], new_tokens: int, vocab: VocabSettings
) -> Raised:
    """Answers of `target`, states of them, a map, and a suite of every sixth question; no draft."""
    sidecar = target.folder / "target.json"
    responses = folder / "responses/tiny/000.json"
    table = responses.with_suffix(".parquet")
    write_responses(table, _answers(target, questions, new_tokens))
    write_sidecar(responses, "responses", [table], {}, {"dataset": "tiny", "part": 0})
    index = folder / "states/tiny/000/index.json"
    capture_part(responses, sidecar, StatesSettings(), "transformers", index, greedy=False)
    manifest = folder / "states/manifest.json"
    write_manifest([index], manifest)
    counts = folder / "vocab/counts/tiny.json"
    count_dataset([responses], sidecar, counts)
    chosen = folder / "vocab/map.json"
    make_map([counts], sidecar, vocab, chosen)
    suite = folder / "suite.jsonl"
    rows = [
        {"id": f"q{n}", "domain": f"d{n % 2}", "system": None, "turns": [questions[n]]}
        for n in range(0, len(questions), 6)
    ]
    suite.write_text("".join(f"{canonical_json(row)}\n" for row in rows), encoding="utf-8")
    return Raised(folder, sidecar, manifest, chosen, folder / "draft/draft.json", suite)


def _answers(target: Target, questions: Sequence[str], new_tokens: int) -> list[Response]:
    tokenizer = target.tokenizer()
    prompts = [
        render(tokenizer, target, [{"role": "user", "content": question}], "instant")
        for question in questions
    ]
    requests = [Request(ids, new_tokens, 0.0, 1.0, 0) for ids in prompts]
    answers = open_engine("transformers", target, threads=1).generate(requests)
    return [
        Response(f"tiny-{n}.0", "tiny", 0, "instant", ids, answer.output_ids,
                 answer.finish_reason, f"{n:032x}", str(tokenizer.decode(answer.output_ids)))
        for n, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
    ]  # fmt: skip
