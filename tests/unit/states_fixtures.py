"""States of a target that does not exist: parts as the build writes them, and its target.json."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from aerie.contracts import codecs
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.states import Sample
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter

HIDDEN, LAYERS, VOCAB = 8, Layers((2, 3, 5)), 100
SCALE = torch.linspace(0.5, 2, HIDDEN).bfloat16()


def sample(length: int, seed: int) -> Sample:
    """A sample whose last states are normed, as a target's are."""
    source = torch.Generator().manual_seed(seed)
    state = torch.randn(length, HIDDEN, generator=source) * 3
    mask = torch.zeros(length, dtype=torch.uint8)
    mask[length // 2 :] = 1
    return Sample(
        torch.randint(0, VOCAB, (length,), generator=source, dtype=torch.int32),
        mask,
        torch.randn(length, 3 * HIDDEN, generator=source).bfloat16(),
        functional.rms_norm(state, (HIDDEN,), SCALE.float(), 1e-6).bfloat16(),
    )


def rounded(sample: Sample, width: int) -> Sample:
    """The sample with its states as fp8 gives them back; `width` is that of one layer."""

    def of(states: torch.Tensor) -> torch.Tensor:
        return codecs.decode(*codecs.encode(states, width))

    last = None if sample.last is None else of(sample.last)
    return replace(sample, aux=of(sample.aux), last=last)


def write_part(folder: Path, files: list[list[int]], target: str = "revision") -> list[Sample]:
    """A part of one states file for each list of lengths, and its index."""
    written: list[Sample] = []
    names: dict[str, list[str]] = {}
    for number, lengths in enumerate(files):
        path = folder / f"{number:05d}.safetensors"
        own = [sample(length, len(written) + seed) for seed, length in enumerate(lengths)]
        with StatesWriter(path, lengths, 3 * HIDDEN, HIDDEN, f"key {lengths}") as writer:
            for each in own:
                writer.add(each)
        names[path.name] = [f"p{len(written) + place}.0" for place in range(len(own))]
        written += own
    tokens = sum(len(each.token_ids) for each in written)
    supervised = sum(int(each.loss_mask.sum()) for each in written)
    size = sum((folder / name).stat().st_size for name in names)
    counts = {
        "samples": len(written),
        "tokens": tokens,
        "supervised": supervised,
        "bytes": size,
    }
    provenance = {
        "target": target,
        "layers": LAYERS.as_dict(),
        "dtype": "bfloat16",
        "codec": "bf16",
    }
    write_index(folder / "index.json", names, LAYERS, counts, provenance)
    return written


def write_target(folder: Path, scale: torch.Tensor = SCALE, revision: str = "revision") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors"
    save_file({"model.norm.weight": scale}, weights)
    counts = {"layers": 6, "hidden_size": HIDDEN, "vocab_size": VOCAB, "max_position": 64}
    provenance = {
        "name": "tiny",
        "revision": revision,
        "dtype": "bfloat16",
        "end_token_ids": [1],
        "special_token_ids": [],
        "thinking_variable": None,
    }
    write_sidecar(folder / "target.json", "target", [weights], counts, provenance)
    return folder / "target.json"
