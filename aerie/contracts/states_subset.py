"""Some samples of a states file in a file of their own, byte for byte as they were stored."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import xxhash

from aerie.contracts import VERSIONS
from aerie.contracts.states import Sample, StatesFile
from aerie.errors import ContractError
from aerie.files import digest_json, replacing, saving_tensors


def write_subset(source: Path, numbers: Sequence[int], out: Path) -> None:
    """Write the samples `numbers` of `source`, one at least, to `out` as a states file.

    They are in memory at once, which a states file itself may be too large for.

    Raises:
        ContractError: `source` is missing or damaged.
    """
    import torch
    from safetensors.torch import save_file

    states = StatesFile(source)
    samples = [states.stored(number) for number in numbers]
    lengths = torch.tensor([0, *(len(sample.token_ids) for sample in samples)])
    tensors = {"offsets": lengths.cumsum(0)} | {
        field.name: torch.cat([getattr(sample, field.name) for sample in samples])
        for field in fields(Sample)
        if getattr(samples[0], field.name) is not None
    }
    tensors["sample_xxh3"] = states.column("sample_xxh3")[list(numbers)]
    digests = {
        f"xxh3.{name}": xxhash.xxh3_128(tensor.view(torch.uint8).numpy().data).hexdigest()
        for name, tensor in tensors.items()
    }
    key = _key(states.metadata.get("key", ""), numbers)
    with replacing(out) as scratch, saving_tensors(scratch):
        save_file(tensors, scratch, {"contract": str(VERSIONS["states"]), "key": key, **digests})


def is_subset(path: Path, key: str, numbers: Sequence[int]) -> bool:
    """Whether `path` is whole and holds the samples `numbers` of the states file with `key`."""
    try:
        states = StatesFile(path)
    except ContractError:
        return False
    return states.metadata.get("key") == _key(key, numbers) and not states.damaged_tensors()


def _key(source: str, numbers: Sequence[int]) -> str:
    return digest_json({"source": source, "samples": list(numbers)})
