"""What the states of a part will be, known from its responses before any is captured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.contracts.layers import Layers
from aerie.contracts.states import token_bytes
from aerie.contracts.states_subset import is_subset, write_subset
from aerie.errors import DataError
from aerie.files import digest_json
from aerie.states.run import Piece, lay_out
from aerie.states.settings import StatesSettings
from aerie.target import Target
from aerie.train.data import Located, is_held_out
from aerie.train.source import TrainingSource

# Header and entry in the index of a file; and of a sample, beside its id: offset, digest, quotes,
# indent.
_FILE_BYTES = 4096
_SAMPLE_BYTES = 48


@dataclass(frozen=True)
class HeldOut:
    """The samples `numbers` of a states file, which stay in a file of their own."""

    source: Path
    key: str
    numbers: tuple[int, ...]
    file: Path

    @property
    def is_there(self) -> bool:
        """Whether the file is, and whole."""
        return is_subset(self.file, self.key, self.numbers)

    def write(self) -> None:
        """Write it, from the states file, which must be there."""
        write_subset(self.source, self.numbers, self.file)


@dataclass(frozen=True)
class RollingPart:
    """One part: `bytes` of its states and `held_out_bytes` of those that stay, both at most."""

    responses: Path
    folder: Path
    keys: tuple[str, ...]
    held_out: tuple[HeldOut, ...]
    samples: tuple[Located, ...]
    bytes: int
    held_out_bytes: int
    layers: Layers

    @property
    def name(self) -> str:
        """`<dataset>/<part>`."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def index(self) -> Path:
        """The index of its states."""
        return self.folder / "index.json"


def plan_part(
    responses: Path, target: Target, settings: StatesSettings, eval_share: float,
    states: Path, held_out: Path,
) -> RollingPart:  # fmt: skip
    """The part whose sidecar is `responses`; its states will lie below the folder `states`, those
    of `eval_share` of its samples below `held_out`.

    Raises:
        ContractError: the responses are missing or damaged.
        ConfigError: the wanted layers do not exist.
    """
    place = Path(responses.parent.name, responses.stem)
    layout = lay_out(responses, target, settings, states / place)
    each = token_bytes(
        len(layout.layers.hf_hidden_states) * target.hidden_size,
        target.hidden_size,
        settings.codec,
        settings.teacher.stored(),
    )
    samples: list[Located] = []
    kept: list[HeldOut] = []
    kept_bytes = 0
    for piece in layout.pieces:
        found, numbers = _locate(piece, place.parent.name, eval_share, held_out / place)
        samples += found
        if numbers:
            path = held_out / place / piece.path.name
            kept.append(HeldOut(piece.path, piece.key, tuple(numbers), path))
            kept_bytes += _bytes(piece, numbers, each)
    return RollingPart(
        responses=responses,
        folder=states / place,
        keys=tuple(piece.key for piece in layout.pieces),
        held_out=tuple(kept),
        samples=tuple(samples),
        bytes=_FILE_BYTES
        + sum(_bytes(piece, range(len(piece.responses)), each) for piece in layout.pieces),
        held_out_bytes=kept_bytes,
        layers=layout.layers,
    )


def _locate(
    piece: Piece, dataset: str, eval_share: float, held_out: Path
) -> tuple[list[Located], list[int]]:
    """The samples of a file as `aerie.train.data.locate` would find them in it, those held out in
    their own file; and the numbers of these.
    """
    samples: list[Located] = []
    numbers: list[int] = []
    for number, response in enumerate(piece.responses):
        length = len(response.prompt_ids) + len(response.output_ids)
        # Row p is supervised if tokens p+1 and p+2 are of the answer.
        answer = length - 1 - max(len(response.prompt_ids), 1)
        if answer < 1:
            continue
        file, place = piece.path, number
        if is_held_out(response.id, eval_share):
            file, place = held_out / piece.path.name, len(numbers)
            numbers.append(number)
        samples.append(Located(response.id, dataset, file, place, length - 2, answer))
    return samples, numbers


def _bytes(piece: Piece, numbers: Sequence[int], each: int) -> int:
    lengths, ids = piece.lengths, [len(response.id.encode()) for response in piece.responses]
    samples = sum(lengths[number] * each + ids[number] + _SAMPLE_BYTES for number in numbers)
    return samples + _FILE_BYTES


def source_of(parts: Sequence[RollingPart]) -> TrainingSource:
    """What a run trains on: the samples in the order in which a manifest would name them.

    Raises:
        DataError: there is no sample.
    """
    samples = [sample for part in parts for sample in part.samples]
    if not samples:
        raise DataError("there is no answer to train on", expected="responses of one part at least")
    states = digest_json({part.name: part.keys for part in parts})
    return TrainingSource(samples, parts[0].layers, states)
