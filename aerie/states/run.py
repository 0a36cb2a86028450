"""Capture of one part: what is on disk and right is kept, the rest is computed.

The declared output is `index.json` alone, written last. The states files beside it are found
again by the key in their header, so a part that was killed continues where it stopped.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts.layers import Layers, choose_layers
from aerie.contracts.responses import AnswerSource, Response, read_responses
from aerie.contracts.sidecar import read_whole
from aerie.contracts.states import Sample, StatesFile, file_key, token_bytes
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.contracts.teacher import encode
from aerie.errors import ConfigError, ContractError, EngineError
from aerie.gates.disk import check_disk
from aerie.gates.states import check_batch, check_probe
from aerie.progress import Progress
from aerie.states.likeliest import placed
from aerie.states.settings import StatesSettings
from aerie.target import Target, read_target
from aerie.target_weights import read_head

if TYPE_CHECKING:
    import torch

    from aerie.engines.base import Captured, CaptureStream, Engine

log = logging.getLogger("aerie")

# Samples are sorted by length within a window of this many batches, not within the whole file:
# what is computed out of order waits in memory, and a file may be larger than memory.
_WINDOW_BATCHES = 16
# A states file's answers are probed at so many places at most, spread over all of them.
_PROBE_ROWS = 256


@dataclass(frozen=True)
class Piece:
    """One states file to be: its path, its responses in order and the key of its content."""

    path: Path
    responses: list[Response]
    key: str

    @property
    def lengths(self) -> list[int]:
        return [_length(response) for response in self.responses]

    @property
    def token_ids(self) -> list[list[int]]:
        return [response.prompt_ids + response.output_ids for response in self.responses]


@dataclass(frozen=True)
class PartLayout:
    """What the states of a part will be: its files, and the provenance that its index states."""

    pieces: list[Piece]
    layers: Layers
    provenance: dict[str, Any]


def capture_part(
    responses: Path,
    target: Path,
    settings: StatesSettings,
    engine: str,
    out: Path,
    *,
    greedy: bool,
    threads: int = 1,
) -> None:
    """Write the states of the part whose sidecar is `responses`, and its index to `out`.

    `target` is target.json, `engine` the name of the engine. `greedy` says that the answers were
    not sampled: then the captured final states must reproduce them.

    Raises:
        ContractError: an input is missing or damaged.
        ConfigError: the wanted layers do not exist, or the target has too few tokens for `teacher`.
        GateError: the disk is too small, or what the engine captured is not right.
    """
    model = read_target(target)
    layout = lay_out(responses, model, settings, out.parent)
    pieces, layers = layout.pieces, layout.layers
    # The old index would vouch for files that are about to change.
    out.unlink(missing_ok=True)
    missing = [piece for piece in pieces if not _is_right(piece)]
    _remove_others(out.parent, {piece.path for piece in pieces} - {p.path for p in missing})
    if missing:
        tokens = sum(sum(piece.lengths) for piece in missing)
        check_disk(
            out.parent,
            tokens,
            len(layers.hf_hidden_states),
            model.hidden_size,
            codec=settings.codec,
            teacher=settings.teacher.stored(),
        )
        kept = sum(sum(piece.lengths) for piece in pieces) - tokens
        job = _Job(model, layers, settings, greedy, threads, engine)
        job.run(missing, kept, f"states {out.parent.parent.name}/{out.parent.name}")
    write_index(
        out,
        {piece.path.name: [response.id for response in piece.responses] for piece in pieces},
        layers,
        _counts(pieces),
        layout.provenance,
    )


def lay_out(responses: Path, target: Target, settings: StatesSettings, folder: Path) -> PartLayout:
    """The states of the part whose sidecar is `responses`, as they lie, or will, in `folder`.

    Raises:
        ContractError: the responses are missing or damaged.
        ConfigError: the wanted layers do not exist, or `teacher.k` is above the vocabulary.
    """
    table = responses.with_suffix(".parquet")
    digest = read_whole(responses, "responses", [table.name])["files"][table.name]["xxh3"]
    layers = choose_layers(target.layers, settings.layers)
    provenance: dict[str, Any] = {
        "target": target.revision,
        "layers": layers.as_dict(),
        "dtype": target.dtype,
        **settings.stored(),
    }
    teacher = settings.teacher.stored()
    if settings.codec == "teacher" and teacher.k > target.vocab_size:
        raise ConfigError(
            "states.teacher.k is more than the target's vocabulary has",
            saw=teacher.k,
            expected=f"at most {target.vocab_size}",
            remedy="lower it; a few dozen are enough: docs/storage.md",
        )
    widths = (len(layers.hf_hidden_states) * target.hidden_size, target.hidden_size)
    per_file = settings.file_bytes // token_bytes(*widths, settings.codec, teacher)
    pieces = _cut(read_responses(table), per_file, folder, provenance)
    return PartLayout(pieces, layers, {**provenance, "responses": digest})


def _length(response: Response) -> int:
    return len(response.prompt_ids) + len(response.output_ids)


def _cut(
    responses: list[Response], tokens: int, folder: Path, provenance: dict[str, Any]
) -> list[Piece]:
    """Files of at most `tokens` tokens, or of one response that is longer."""
    groups = _grouped(list(map(_length, responses)), tokens)
    pieces = []
    for number, group in enumerate(groups):
        members = [responses[index] for index in group]
        samples = [(response.prompt_ids, response.output_ids) for response in members]
        path = folder / f"{number:05d}.safetensors"
        pieces.append(Piece(path, members, file_key(samples, provenance)))
    return pieces


def _grouped(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Runs of neighbours whose lengths add up to at most `limit`; one that is longer is alone."""
    start, total = 0, 0
    for index, length in enumerate(lengths):
        if index > start and total + length > limit:
            yield range(start, index)
            start, total = index, 0
        total += length
    if lengths:
        yield range(start, len(lengths))


def _batches(lengths: dict[int, int], tokens: int) -> Iterator[list[int]]:
    """Keys of `lengths` in batches that are `tokens` at most when padded, longest first."""
    batch: list[int] = []
    for index in sorted(lengths, key=lambda index: (-lengths[index], index)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _is_right(piece: Piece) -> bool:
    try:
        states = StatesFile(piece.path)
    except ContractError:
        return False
    return states.metadata.get("key") == piece.key and not states.damaged_tensors()


def _remove_others(folder: Path, kept: set[Path]) -> None:
    for pattern in ("*.safetensors", ".*.safetensors.tmp"):
        for path in folder.glob(pattern):
            if path not in kept:
                log.info("%s: removed, it is not of this part as it now is", path)
                path.unlink()


def _counts(pieces: list[Piece]) -> dict[str, int]:
    return {
        "samples": sum(len(piece.responses) for piece in pieces),
        "tokens": sum(sum(piece.lengths) for piece in pieces),
        "supervised": sum(
            len(response.output_ids) for piece in pieces for response in piece.responses
        ),
        "bytes": sum(piece.path.stat().st_size for piece in pieces),
    }


@dataclass(frozen=True)
class _Job:
    """How the files of one part are computed."""

    target: Target
    layers: Layers
    settings: StatesSettings
    greedy: bool
    threads: int
    engine: str

    def run(self, pieces: list[Piece], kept_tokens: int, title: str) -> None:
        from aerie.engines import STREAMING

        if self.engine not in STREAMING:
            self._run(pieces, kept_tokens, title)
            return
        # A server has the cores beside this process. Threads that share one small tensor with it
        # wait for each other: checks of 6 GB/s by one thread were 1 GB/s by two, on a busy machine.
        with _tensor_threads(1):
            self._run(pieces, kept_tokens, title)

    def _run(self, pieces: list[Piece], kept_tokens: int, title: str) -> None:
        teaches = self.settings.codec == "teacher"
        head = read_head(self.target) if self.greedy or teaches else None
        teacher = placed(head) if head is not None and teaches else None
        head = head if self.greedy else None
        total = kept_tokens + sum(sum(piece.lengths) for piece in pieces)
        with Progress(title, total, "tokens") as progress:
            progress.skip(kept_tokens)
            with self._captured(pieces, progress) as captured:
                for piece in pieces:
                    self._write(piece, captured, head, teacher)

    @contextmanager
    def _captured(self, pieces: list[Piece], progress: Progress) -> "Iterator[Iterator[Captured]]":
        """States of the responses of all pieces, in their order."""
        from aerie.engines import STREAMING, open_capture, open_engine

        if self.engine in STREAMING:
            log_file = pieces[0].path.with_name("server.log")
            with (
                open_capture(self.engine, self.target, self.layers, log_file) as stream,
                # Before the server goes, whatever happened.
                closing(self._streamed(stream, pieces, progress)) as states,
            ):
                yield states
        else:
            engine = open_engine(self.engine, self.target, self.threads)
            yield (states for piece in pieces for states in self._batched(engine, piece, progress))

    def _write(
        self,
        piece: Piece,
        captured: "Iterator[Captured]",
        head: "torch.Tensor | None",
        teacher: "torch.Tensor | None",
    ) -> None:
        """`head` [V, H] is that of the probe; `teacher`, the same, makes what stands for `last`."""
        import torch

        hidden = self.target.hidden_size
        widths = (len(self.layers.hf_hidden_states) * hidden, hidden)
        rows: list[torch.Tensor] = []
        answers: list[int] = []
        probes = _probes(piece.responses)
        settings = self.settings
        with StatesWriter(
            piece.path, piece.lengths, *widths, piece.key, settings.codec, settings.teacher.stored()
        ) as writer:
            own = islice(captured, len(piece.responses))
            for number, (response, states) in enumerate(zip(piece.responses, own, strict=True)):
                sample = _sample(response, states)
                writer.add(sample if teacher is None else self._taught(sample, teacher))
                if probed := probes.get(number):
                    rows.append(states.last[[len(response.prompt_ids) + at - 1 for at in probed]])
                    answers.extend(response.output_ids[at] for at in probed)
            # Inside the writer, so that a file that fails the gate never gets its name.
            if head is not None and answers:
                with _tensor_threads(self.threads):
                    share = check_probe(
                        head, torch.cat(rows), torch.tensor(answers), str(piece.path)
                    )
                log.info("%s: %.1f%% of greedy answers reproduced", piece.path.name, 100 * share)

    def _taught(self, sample: Sample, head: "torch.Tensor") -> Sample:
        """The sample with the target's likeliest tokens in the place of `last`.

        Raises:
            EngineError: a server took the GPU's memory that was free before.
        """
        import torch

        try:
            with _tensor_threads(self.threads):
                ids, logprobs, tail = encode(sample.final(), head, self.settings.teacher.k)
        except torch.OutOfMemoryError as error:
            raise EngineError(
                "the GPU has no room to compute the likeliest tokens",
                saw=str(error).splitlines()[0],
                remedy="lower `sglang.memory_share`, or set `states.codec: fp8`",
            ) from error
        return replace(sample, last=None, top_ids=ids, top_logprobs=logprobs, tail=tail)

    def _streamed(
        self, stream: "CaptureStream", pieces: list[Piece], progress: Progress
    ) -> "Generator[Captured, None, None]":
        """States of the responses of all pieces: the engine works ahead, across files."""
        ids = [ids for piece in pieces for ids in piece.token_ids]
        for each, states in zip(ids, stream.states(ids), strict=True):
            check_batch([states], [each], self.layers, self.target.hidden_size)
            progress.advance(len(each))
            yield states

    def _batched(self, engine: "Engine", piece: Piece, progress: Progress) -> "Iterator[Captured]":
        """States of the piece's responses, by batches of its own: the same ones in every run."""
        ids = piece.token_ids
        for window in _grouped(piece.lengths, _WINDOW_BATCHES * self.settings.batch_tokens):
            found: dict[int, Captured] = {}
            lengths = {index: len(ids[index]) for index in window}
            for numbers in _batches(lengths, self.settings.batch_tokens):
                batch = [ids[index] for index in numbers]
                captured = engine.capture(batch, self.layers)
                check_batch(captured, batch, self.layers, self.target.hidden_size)
                found.update(zip(numbers, captured, strict=True))
                progress.advance(sum(map(len, batch)))
            for index in window:
                yield found.pop(index)


@contextmanager
def _tensor_threads(count: int) -> Iterator[None]:
    """So many threads for each operation on tensors."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loss_mask(prompt_tokens: int, output_tokens: int) -> "torch.Tensor":
    """Which tokens of a sample are supervised, uint8 [t]: those of the answer."""
    import torch

    mask = torch.zeros(prompt_tokens + output_tokens, dtype=torch.uint8)
    mask[prompt_tokens:] = 1
    return mask


def _sample(response: Response, states: "Captured") -> Sample:
    import torch

    ids = torch.tensor(response.prompt_ids + response.output_ids, dtype=torch.int32)
    mask = loss_mask(len(response.prompt_ids), len(response.output_ids))
    return Sample(ids, mask, states.aux, states.last)


def _probes(responses: Sequence[Response]) -> dict[int, range]:
    """Which answers of a file are probed, by number, and at which positions, evenly spread.

    Not those that were sampled elsewhere: nothing says that they were greedy.
    """
    own = [n for n, response in enumerate(responses) if response.source == AnswerSource.TARGET]
    chosen = own[:: -(-len(own) // _PROBE_ROWS)] if own else []
    probes = {}
    for number in chosen:
        response = responses[number]
        # Nothing stands before the first token of an answer to no prompt.
        first, length = 0 if response.prompt_ids else 1, len(response.output_ids)
        stride = max(1, -(-(length - first) // (_PROBE_ROWS // len(chosen))))
        probes[number] = range(first, length, stride)
    return probes
