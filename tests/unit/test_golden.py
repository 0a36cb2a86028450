"""What a file means is frozen under its contract version.

If a test here fails you changed the meaning of an artifact: bump its number in
`aerie/contracts/__init__.py`, so that costly phases go stale, and store what the failure prints.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from aerie.config import ResponsesSettings
from aerie.contracts import VERSIONS
from aerie.contracts.codecs import Teacher
from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers, choose_layers
from aerie.contracts.prompts import Prompt
from aerie.contracts.responses import RESPONSES
from aerie.contracts.states import Sample, file_key
from aerie.contracts.states_writer import StatesWriter
from aerie.contracts.teacher import decode
from aerie.contracts.vocab import VocabMap, write_map
from aerie.files import digest_bytes, digest_file, digest_json
from aerie.prompts.distinct import rank
from aerie.prompts.text import prompt_key
from aerie.responses.requests import sampling
from aerie.train.model import Draft
from aerie.train.objective import Frozen, objective
from aerie.train.packing import make_pack
from aerie.train.tally import walk
from aerie.train.weights import Weights

GOLDEN = Path(__file__).parents[1] / "fixtures/golden.json"


def prompts(folder: Path) -> str:
    key = prompt_key("Be brief.", ["Ｈｅｌｌｏ  Wörld\u200b"])
    fields = sorted(Prompt.__dataclass_fields__)
    return digest_json([key, rank(3, "set", key), fields])


def responses(folder: Path) -> str:
    settings = ResponsesSettings(temperature=0.7, top_p=0.9)
    return digest_json([sampling(settings, 5), sampling(ResponsesSettings(), 5), str(RESPONSES)])


def samples() -> list[Sample]:
    def ramp(rows: int, width: int, start: int) -> torch.Tensor:
        # Exact in bf16, whatever the machine.
        return ((torch.arange(rows * width) + start) % 13 - 6).reshape(rows, width).bfloat16() / 8

    return [
        Sample(
            torch.arange(length, dtype=torch.int32) * 3 % 17,
            torch.tensor([0] * 3 + [1] * (length - 3), dtype=torch.uint8),
            ramp(length, 24, length),
            ramp(length, 8, 5 * length),
        )
        for length in (9, 6)
    ]


def states(folder: Path) -> str:
    key = file_key([([1, 2], [3])], {"target": "t"})
    with StatesWriter(folder / "s.safetensors", [9, 6], 24, 8, key) as writer:
        for sample in samples():
            writer.add(sample)
    return digest_bytes(
        (folder / "s.safetensors").read_bytes(), str(choose_layers(61).as_dict()).encode()
    )


def teacher(folder: Path) -> str:
    """The bytes of a file of the codec teacher, and the distribution that they mean over a map."""
    ids = torch.tensor([[3, 0, 9], [5, 1, 2]], dtype=torch.int32)
    logprobs = torch.tensor([[-0.25, -2.0, -4.0], [-0.5, -1.5, -3.0]], dtype=torch.float16)
    tail = torch.tensor([[0.0625], [0.125]])
    mask, tokens = torch.tensor([0, 1], dtype=torch.uint8), torch.tensor([7, 3], dtype=torch.int32)
    aux = samples()[0].aux[:2]
    kept = Sample(tokens, mask, aux, None, top_ids=ids, top_logprobs=logprobs, tail=tail)
    path = folder / "t.safetensors"
    with StatesWriter(path, [2], 24, 8, "key", "teacher", Teacher(3, "fp8")) as writer:
        writer.add(kept)
    draft_ids = torch.tensor([0, -1, 1, 2, -1, 3, -1, -1, 4, -1, -1, -1])
    shares = decode(ids, logprobs, tail, draft_ids, 5, torch.float64)
    return digest_bytes(path.read_bytes(), str([f"{x:.9f}" for x in shares.flatten()]).encode())


def vocab(folder: Path) -> str:
    write_map(folder / "map.safetensors", VocabMap(np.array([0, 2, 5, 11]), 16))
    names = ("map.safetensors", "t2d.pt", "d2t.pt")
    return digest_json([digest_file(folder / name) for name in names])


CONFIG = DraftConfig(
    hidden_size=8,
    intermediate_size=12,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocab_size=17,
    draft_vocab_size=12,
    max_position=64,
    norm_eps=1e-5,
    rope={"rope_theta": 10000.0, "rope_type": "default"},
    layers=Layers((2, 30, 58)),
)


def draft(folder: Path) -> str:
    """Names, shapes, configuration, and the value of the objective to ten digits."""
    model = Draft(CONFIG).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            count = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_(torch.sin(count + number).reshape(parameter.shape) / 3)
    embedding = torch.cos(torch.arange(17 * 8, dtype=torch.float64)).reshape(17, 8)
    draft_ids = torch.arange(17).where(torch.arange(17) < 12, -1)
    weights = Weights.of(CONFIG, model.state_dict())
    gradient = Weights.zeros(CONFIG, torch.float64, torch.device("cpu"))
    frozen = Frozen(embedding, embedding[:12], draft_ids)
    result = objective(weights, gradient, frozen, make_pack(samples()), 3, 0.8)
    shapes = {name: list(shape) for name, shape in CONFIG.shapes().items()}
    tally = walk([2, 0, 3, 1, 1], 3).as_dict()
    return digest_json([shapes, CONFIG.as_json(), f"{result.loss.item():.9f}", tally])


@pytest.mark.parametrize("make", [prompts, responses, states, teacher, vocab, draft])
def test_the_meaning_is_that_of_the_version(make: Callable[[Path], str], tmp_path: Path) -> None:
    artifact = {"vocab": "map"}.get(make.__name__, make.__name__)
    number = VERSIONS["states" if make is teacher else artifact]
    saw = {"contract": number, "meaning": make(tmp_path)}
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert saw == golden[artifact], f"{artifact}: {json.dumps(saw)}"
