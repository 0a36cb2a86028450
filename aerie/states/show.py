"""What a states file holds, for people: its header, and the size of the states of one sample."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import StatesFile
from aerie.errors import ContractError, DataError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FileFacts:
    """A states file. `tensors` are name, shape and digest; `layers` names its columns of `aux`.

    `lengths` are tokens of the shortest, the middle and the longest sample.
    """

    contract: str
    key: str
    bytes: int
    samples: int
    tokens: int
    supervised: int
    lengths: tuple[int, float, int]
    layers: list[str]
    tensors: list[tuple[str, tuple[int, ...], str]]


@dataclass(frozen=True)
class SampleFacts:
    """One sample. `norms` are, for each layer, the mean, least and largest L2 norm of a token.

    `shares` are, with the codec teacher, the same of the likeliest token's share, and of the
    share of all that was not kept; else there are none.
    """

    number: int
    id: str | None
    tokens: int
    supervised: int
    norms: list[tuple[str, float, float, float]]
    shares: list[tuple[str, float, float, float]]


def file_facts(path: Path) -> FileFacts:
    """What the header of a states file says, and its loss mask.

    Raises:
        ContractError: it is not a whole states file.
    """
    states = StatesFile(path)
    lengths = [end - start for start, end in zip(states.offsets, states.offsets[1:], strict=False)]
    return FileFacts(
        contract=states.metadata["contract"],
        key=states.metadata.get("key", ""),
        bytes=path.stat().st_size,
        samples=len(states),
        tokens=sum(lengths),
        supervised=int(states.column("loss_mask").sum()),
        lengths=(min(lengths, default=0), median(lengths or [0]), max(lengths, default=0)),
        layers=_layers(states),
        tensors=[
            (name, states.shape(name), states.metadata.get(f"xxh3.{name}", ""))
            for name in states.names
        ],
    )


def sample_facts(path: Path, sample: str) -> SampleFacts:
    """What one sample of a states file holds; `sample` is its number or its id.

    Raises:
        ContractError: it is not a whole states file.
        DataError: there is no such sample.
    """
    states = StatesFile(path)
    ids = _ids(states)
    number = ids.index(sample) if sample in ids else int(sample) if sample.isdecimal() else -1
    if not 0 <= number < len(states):
        raise DataError(
            f"{path} has no sample {sample}",
            expected=f"a number below {len(states)}"
            + (f", or an id such as {ids[0]}" if ids else ""),
        )
    found = states[number]
    layers = _layers(states)
    blocks = {
        name: block.float().norm(dim=1)
        for name, block in zip(layers, found.aux.chunk(len(layers), dim=1), strict=True)
    }
    if found.last is not None:
        blocks["last"] = found.last.float().norm(dim=1)
    shares = {}
    if found.top_logprobs is not None and found.tail is not None:
        shares["likeliest token"] = found.top_logprobs[:, 0].float().exp()
        shares[f"beyond {found.top_logprobs.shape[1]} tokens"] = found.tail[:, 0]
    return SampleFacts(
        number=number,
        id=ids[number] if ids else None,
        tokens=len(found.token_ids),
        supervised=int(found.loss_mask.sum()),
        norms=[(name, *_range(norms)) for name, norms in blocks.items()],
        shares=[(name, *_range(values)) for name, values in shares.items()],
    )


def _range(values: "torch.Tensor") -> tuple[float, float, float]:
    """Mean, least and largest."""
    if not len(values):
        return 0.0, 0.0, 0.0
    return float(values.mean()), float(values.min()), float(values.max())


def _ids(states: StatesFile) -> list[str]:
    """Ids of the samples, which the index beside the file knows; empty where it does not."""
    entry = _index(states.path).get("files", {}).get(states.path.name, {})
    ids = list(entry.get("samples", []))
    return ids if entry.get("key") == states.metadata.get("key") else []


def _layers(states: StatesFile) -> list[str]:
    """Names of the captured layers; numbers alone where no index says which they are."""
    found = _index(states.path).get("layers", {}).get("hf_hidden_states", [])
    if "last" in states.names:
        count = states.shape("aux")[1] // max(states.shape("last")[1], 1)
    else:
        # Without `last` the file alone tells the width of a layer only where each has a scale.
        scaled = "aux_scale" in states.names
        count = states.shape("aux_scale")[1] if scaled else max(len(found), 1)
    if len(found) == count:
        return [f"layer {layer}" for layer in found]
    return [f"aux {number}" for number in range(count)]


def _index(path: Path) -> dict[str, Any]:
    try:
        return read_sidecar(path.with_name("index.json"), "states")
    except ContractError:
        # A file that is still without its index can be looked into.
        return {}
