"""The codec fp8: how much it loses, and that the file and the pack give back what it kept."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts.codecs import decode, encode
from aerie.contracts.states import DIGEST_BYTES, Sample, StatesFile, token_bytes
from aerie.contracts.states_writer import StatesWriter
from aerie.errors import ContractError
from aerie.train.loader import Loader
from aerie.train.packing import make_pack
from tests.unit.states_fixtures import rounded
from tests.unit.train_fixtures import make_trainer, write_samples

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, LAYERS = 256, 3
CPU = torch.device("cpu")


def states(tokens: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def sample(tokens: int, seed: int = 0) -> Sample:
    ids = torch.arange(tokens, dtype=torch.int32)
    mask = (ids > tokens // 3).to(torch.uint8)
    return Sample(ids, mask, states(tokens, LAYERS * WIDTH, seed), states(tokens, WIDTH, seed + 1))


@settings(max_examples=50, deadline=None)
@given(
    outlier=st.floats(4, 5000),
    size=st.floats(1e-6, 1e6),
    seed=st.integers(0, 1000),
    dimension=st.integers(0, WIDTH - 1),
)
def test_an_outlier_costs_the_others_nothing(
    outlier: float, size: float, seed: int, dimension: int
) -> None:
    exact = (states(8, LAYERS * WIDTH, seed).float() * size).unflatten(1, (LAYERS, WIDTH))
    exact[:, 1, dimension] = outlier * size
    exact = exact.bfloat16()
    got = decode(*encode(exact.flatten(1), WIDTH)).unflatten(1, (LAYERS, WIDTH))
    others = torch.arange(WIDTH) != dimension
    for part in (slice(None), others):
        error = (got - exact).float()[:, :, part].norm(dim=(0, 2))
        assert (error / exact.float()[:, :, part].norm(dim=(0, 2)) <= 0.03).all()


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-30, 1.0, 448.0, 449.0, 3e38])
def test_a_block_of_one_value_keeps_it(value: float) -> None:
    exact = torch.full((2, WIDTH), value).bfloat16()
    got = decode(*encode(exact, WIDTH)).float()
    assert torch.isfinite(got).all()
    # The largest value of a block loses the rounding of its scale alone.
    torch.testing.assert_close(got, exact.float(), rtol=0.01, atol=1e-32)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_scale_is_of_the_largest_value_whatever_its_sign(data: st.DataObject) -> None:
    """Found by the bits of bf16, and compared with the plain computation in float32."""
    bits = data.draw(st.lists(st.integers(0, 0xFFFF), min_size=8, max_size=8))
    exact = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    exact = exact.where(exact.isfinite(), 0).unsqueeze(0)
    values, scales = encode(exact, 4)
    blocks = exact.float().unflatten(1, (2, 4))
    expected = (blocks.abs().amax(2) / 448).clamp(min=2.0**-100).bfloat16().float()
    assert torch.equal(scales, expected)
    rounded = (blocks * (1 / expected.unsqueeze(2))).flatten(1).to(torch.float8_e4m3fn)
    assert torch.equal(values.view(torch.uint8), rounded.view(torch.uint8))


def test_kimi_takes_half() -> None:
    assert token_bytes(21504, 7168) == 57_349
    assert token_bytes(21504, 7168, "fp8") == 28_693


def write(path: Path, samples: list[Sample]) -> StatesFile:
    lengths = [len(each.token_ids) for each in samples]
    with StatesWriter(path, lengths, LAYERS * WIDTH, WIDTH, "key", "fp8") as writer:
        for each in samples:
            writer.add(each)
    return StatesFile(path)


def test_a_file_gives_back_what_was_encoded(tmp_path: Path) -> None:
    samples = [sample(length, length) for length in (5, 1, 30)]
    file = write(tmp_path / "0.safetensors", samples)
    assert file.damaged_tensors() == []
    for index, each in enumerate(samples):
        kept = rounded(each, WIDTH)
        for name in ("token_ids", "loss_mask", "aux", "last"):
            assert torch.equal(getattr(file[index], name), getattr(kept, name)), name
    header = 2048
    assert file.path.stat().st_size < 36 * token_bytes(LAYERS * WIDTH, WIDTH, "fp8") + header


def test_a_flipped_scale_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "0.safetensors", [sample(9), sample(4)])
    # The digests of two samples end the file, and the scales of `last` come before them.
    with file.path.open("r+b") as stream:
        stream.seek(-1 - 2 * DIGEST_BYTES, 2)
        before = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([before ^ 1]))
    damaged = StatesFile(file.path)
    assert damaged.damaged_tensors() == ["last_scale"]
    damaged.stored(0)
    with pytest.raises(ContractError, match="sample 1 changed"):
        damaged.stored(1)


def test_a_pack_is_decoded_on_its_device(tmp_path: Path) -> None:
    samples = [sample(length, length) for length in (9, 40)]
    file = write(tmp_path / "0.safetensors", samples)
    stored = make_pack([file.stored(index) for index in range(2)], 64)
    assert stored.aux.dtype == torch.float8_e4m3fn
    got, expected = stored.to(CPU), make_pack([*file], 64)
    assert torch.equal(got.aux, expected.aux)
    assert got.teacher is not None and expected.teacher is not None
    assert torch.equal(got.teacher, expected.teacher)
    assert got.aux_scale is None


def test_training_reads_it(tmp_path: Path) -> None:
    exact, rounded = write_samples(tmp_path / "bf16"), write_samples(tmp_path / "fp8", codec="fp8")
    for samples in (exact, rounded):
        (packs,) = Loader([[samples[:3]]], 128, CPU)
        assert packs[0].aux.dtype == torch.bfloat16
    reached = []
    for name, samples in (("bf16", exact), ("fp8", rounded)):
        trainer = make_trainer(tmp_path / name, samples, epochs=4)
        trainer.run()
        reached.append(trainer.state["epochs"][-1]["overall"]["accept_length"])
    assert reached[0] > 1.5
    assert reached[1] == pytest.approx(reached[0], abs=0.1)
