"""The codec teacher: what it keeps, how far the completed distribution can be off, and that files,
packs, training, export and gates know it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aerie.contracts import teacher
from aerie.contracts.codecs import Rounding, Teacher
from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_sidecar
from aerie.contracts.states import Sample, StatesFile, token_bytes
from aerie.contracts.states_index import write_index
from aerie.contracts.states_writer import StatesWriter
from aerie.errors import ContractError, DataError, GateError
from aerie.gates.disk import check_disk
from aerie.states.export import export
from aerie.states.likeliest import placed
from aerie.states.manifest import write_manifest
from aerie.states.settings import StatesSettings
from aerie.states.show import file_facts, sample_facts
from aerie.train.data import locate, read_pack
from aerie.train.model import Draft
from aerie.train.objective import Frozen, Result, objective, teacher_shares
from aerie.train.packing import make_pack
from aerie.train.source import TrainingSource
from aerie.train.weights import Weights
from tests.commands import aerie
from tests.unit.states_fixtures import HIDDEN, LAYERS, rounded, write_part
from tests.unit.states_fixtures import sample as whole_sample
from tests.unit.train_fixtures import CONFIG, make_trainer, write_samples

pytestmark = pytest.mark.usefixtures("one_thread")
VOCAB, MAP, WIDTH = 600, 128, 16
# A float16 has 11 bits, and no log-probability here is below -32.
ROUNDING = 32 * 2**-11


def drawn(rows: int, sharpness: float, seed: int, vocab: int = VOCAB) -> tuple[Tensor, Tensor]:
    """Final states bf16 [rows, H] and a head [V, H]."""
    source = torch.Generator().manual_seed(seed)
    last = torch.randn(rows, WIDTH, generator=source).bfloat16()
    return last, torch.randn(vocab, WIDTH, generator=source) * sharpness / WIDTH**0.5


def mapped(size: int, seed: int, vocab: int = VOCAB) -> tuple[Tensor, Tensor]:
    """Target ids of a map, and the draft id of each target id or -1."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randperm(vocab, generator=source)[:size].sort().values
    draft_ids = torch.full((vocab,), -1)
    draft_ids[ids] = torch.arange(size)
    return ids, draft_ids


cases = given(
    k=st.integers(1, VOCAB),
    size=st.integers(1, VOCAB),
    sharpness=st.floats(0.1, 8),
    seed=st.integers(0, 1000),
)


@settings(max_examples=50, deadline=None)
@cases
def test_the_likeliest_are_kept_and_the_tail_is_the_rest(
    k: int, size: int, sharpness: float, seed: int
) -> None:
    last, head = drawn(5, sharpness, seed)
    ids, logprobs, tail = teacher.encode(last, head, k)
    exact = (last.double() @ head.double().t()).log_softmax(1)
    assert (logprobs[:, :-1] >= logprobs[:, 1:]).all()
    assert all(len(set(row)) == k for row in ids.tolist())
    kept = exact.gather(1, ids.long())
    torch.testing.assert_close(logprobs.double(), kept, rtol=2**-11, atol=1e-5)
    torch.testing.assert_close(tail[:, 0].double(), 1 - kept.exp().sum(1), rtol=1e-4, atol=1e-5)
    # None that was left is likelier, but for what float32 does not tell apart.
    left = exact.scatter(1, ids.long(), -torch.inf).amax(1)
    assert (left <= kept[:, -1] + 1e-5).all()


@settings(max_examples=100, deadline=None)
@cases
def test_the_completed_distribution_is_as_near_as_promised(
    k: int, size: int, sharpness: float, seed: int
) -> None:
    last, head = drawn(5, sharpness, seed)
    columns, draft_ids = mapped(size, seed)
    kept = teacher.encode(last, head, k)
    got = teacher.decode(*kept, draft_ids, size, torch.float64)
    everything = (last.double() @ head.double().t()).softmax(1)
    exact = everything[:, columns] / everything[:, columns].sum(1, keepdim=True)
    assert (got >= 0).all()
    torch.testing.assert_close(got.sum(1), torch.ones(5, dtype=torch.float64))
    in_map = everything[:, columns]
    is_kept = torch.zeros_like(everything, dtype=torch.bool).scatter(1, kept[0].long(), True)
    mass = (in_map * is_kept[:, columns]).sum(1)
    true = (in_map * ~is_kept[:, columns]).sum(1)
    taken = kept[2][:, 0].double() / max(VOCAB - k, 1) * (~is_kept[:, columns]).sum(1)
    rest = torch.maximum(true, taken)
    distance = (got - exact).abs().sum(1) / 2
    assert (distance <= rest / (mass + rest) + ROUNDING).all()


def test_an_id_that_was_not_kept_has_the_mean_share_of_those() -> None:
    ids, logprobs = torch.tensor([[3, 0, 9]], dtype=torch.int32), torch.tensor([[0.6, 0.2, 0.11]])
    kept = (ids, logprobs.log().double(), torch.tensor([[0.09]]))
    # Target ids 0, 2, 3, 5 and 8 of 12: the second, the first, and three of nine that share 0.09.
    draft_ids = torch.tensor([0, -1, 1, 2, -1, 3, -1, -1, 4, -1, -1, -1])
    got = teacher.decode(*kept, draft_ids, 5, torch.float64)
    expected = torch.tensor([[0.2, 0.01, 0.6, 0.01, 0.01]], dtype=torch.float64) / 0.83
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_all_of_the_vocabulary_is_the_exact_teacher() -> None:
    last, head = drawn(40, 4, 0)
    columns, draft_ids = mapped(MAP, 1)
    got = teacher.decode(*teacher.encode(last, head, VOCAB), draft_ids, MAP, torch.float32)
    exact = (last.float() @ head[columns].t()).softmax(1)
    torch.testing.assert_close(got, exact, rtol=ROUNDING, atol=1e-6)


def test_chunks_and_slices_of_the_head_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    last, head = drawn(40, 4, 0)
    whole = teacher.encode(last, head, 20)
    monkeypatch.setattr(teacher, "_LOGITS_BYTES", 4 * VOCAB * 7)
    monkeypatch.setattr(teacher, "_HEAD_ROWS", 130)
    ids, logprobs, tail = teacher.encode(last, head, 20)
    assert torch.equal(ids, whole[0])
    torch.testing.assert_close(logprobs, whole[1], rtol=2**-10, atol=1e-5)
    torch.testing.assert_close(tail, whole[2])


def test_nothing_kept_in_the_map_is_a_distribution_all_the_same() -> None:
    ids = torch.tensor([[5, 6]], dtype=torch.int32)
    logprobs = torch.tensor([[-0.001, -7.0]]).half()
    draft_ids = torch.full((VOCAB,), -1)
    draft_ids[100:104] = torch.arange(4)
    for tail in (0.0, 0.2):
        kept = (ids, logprobs, torch.tensor([[tail]]))
        assert teacher.decode(*kept, draft_ids, 4, torch.float32).tolist() == [[0.25] * 4]


def test_without_a_gpu_the_head_stays_where_it_is() -> None:
    head = torch.zeros(4, 2)
    if not torch.cuda.is_available():
        assert placed(head) is head


# The objective.

DRAFT = DraftConfig(
    hidden_size=WIDTH, intermediate_size=24, heads=4, kv_heads=2, head_dim=4, vocab_size=VOCAB,
    draft_vocab_size=MAP, max_position=128, norm_eps=1e-5,
    rope={"rope_theta": 10000.0, "rope_type": "default"}, layers=Layers((1, 2, 3)),
)  # fmt: skip


def answers(head: Tensor, shapes: Sequence[tuple[int, int]] = ((4, 30), (3, 20))) -> list[Sample]:
    source = torch.Generator().manual_seed(2)
    return [
        Sample(
            torch.randint(len(head), (prompt + answer,), generator=source, dtype=torch.int32),
            torch.tensor([0] * prompt + [1] * answer, dtype=torch.uint8),
            torch.randn(prompt + answer, DRAFT.aux_width, generator=source).bfloat16(),
            torch.randn(prompt + answer, WIDTH, generator=source).bfloat16(),
        )
        for prompt, answer in shapes
    ]


def taught(sample: Sample, head: Tensor, k: int) -> Sample:
    ids, logprobs, tail = teacher.encode(sample.final(), head, k)
    return replace(sample, last=None, top_ids=ids, top_logprobs=logprobs, tail=tail)


def loss_of(samples: Sequence[Sample], head: Tensor) -> tuple[Result, Tensor]:
    """Loss and gradient of one draft, in float64."""
    torch.manual_seed(1)
    draft = Draft(DRAFT).double()
    for parameter in draft.parameters():
        torch.nn.init.normal_(parameter, 0.3 if parameter.dim() == 1 else 0.0, 0.4)
    columns, draft_ids = mapped(MAP, 1)
    frozen = Frozen(head.double(), head[columns].double(), draft_ids)
    weights = Weights.of(DRAFT, draft.state_dict())
    gradient = Weights.zeros(DRAFT, torch.float64, torch.device("cpu"))
    gradient.flat.fill_(float("nan"))
    exact = [replace(each, aux=each.aux.double()) for each in samples]
    result = objective(weights, gradient, frozen, make_pack(exact), 3, 0.8)
    return result, torch.cat([view.flatten() for view in gradient.named.values()])


def test_the_loss_of_the_whole_vocabulary_is_the_exact_one() -> None:
    _, head = drawn(1, 6, 3)
    samples = answers(head)
    exact, gradient = loss_of(samples, head)
    result, other = loss_of([taught(each, head, VOCAB) for each in samples], head)
    assert result.loss.item() == pytest.approx(exact.loss.item(), rel=1e-4)
    assert torch.equal(result.correct, exact.correct)
    assert (other - gradient).norm() / gradient.norm() < 1e-3


def test_a_gradient_of_64_tokens_is_near_and_of_fewer_farther() -> None:
    _, head = drawn(1, 6, 3)
    samples = answers(head)
    exact, gradient = loss_of(samples, head)
    distances, losses = [], []
    for k in (4, 16, 64):
        result, other = loss_of([taught(each, head, k) for each in samples], head)
        distances.append(float((other - gradient).norm() / gradient.norm()))
        losses.append(abs(result.loss.item() - exact.loss.item()))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 0.05
    assert losses[2] < 0.02 * exact.loss.item()


# Files.


def write(path: Path, samples: Sequence[Sample], k: int, aux: Rounding) -> StatesFile:
    lengths = [len(each.token_ids) for each in samples]
    widths = (DRAFT.aux_width, WIDTH)
    with StatesWriter(path, lengths, *widths, "key", "teacher", Teacher(k, aux)) as writer:
        for each in samples:
            writer.add(each)
    return StatesFile(path)


@pytest.mark.parametrize("aux", ["bf16", "fp8"])
def test_a_file_gives_back_what_was_encoded(tmp_path: Path, aux: Rounding) -> None:
    _, head = drawn(1, 6, 3)
    samples = [taught(each, head, 20) for each in answers(head, ((4, 30), (1, 0), (3, 20)))]
    file = write(tmp_path / "0.safetensors", samples, 20, aux)
    assert file.damaged_tensors() == []
    for got, given_ in zip(file, samples, strict=True):
        expected = rounded(given_, WIDTH) if aux == "fp8" else given_
        assert got.last is None
        for name in ("token_ids", "loss_mask", "aux", "top_ids", "top_logprobs", "tail"):
            assert torch.equal(getattr(got, name), getattr(expected, name)), name
    size = token_bytes(DRAFT.aux_width, WIDTH, "teacher", Teacher(20, aux))
    assert 0 < file.path.stat().st_size - 58 * size < 2048


def test_kimi_takes_three_quarters_of_fp8() -> None:
    assert token_bytes(21504, 7168, "teacher") == 21504 + 3 * 4 + 64 * 6 + 4 + 5
    assert token_bytes(21504, 7168, "teacher", Teacher(16, "bf16")) == 2 * 21504 + 16 * 6 + 4 + 5


def test_a_pack_has_the_teacher_of_the_same_rows(tmp_path: Path) -> None:
    _, head = drawn(1, 6, 3)
    exact = answers(head)
    file = write(tmp_path / "0.safetensors", [taught(e, head, VOCAB) for e in exact], VOCAB, "fp8")
    columns, draft_ids = mapped(MAP, 1)
    frozen = Frozen(head, head[columns], draft_ids)
    pack = make_pack([file.stored(index) for index in range(2)], 64).to(torch.device("cpu"))
    assert pack.aux.dtype == torch.bfloat16
    assert pack.teacher is None
    rows = slice(sum(pack.answers))
    got, expected = teacher_shares(frozen, pack), teacher_shares(frozen, make_pack(exact, 64))
    torch.testing.assert_close(got[rows], expected[rows], rtol=ROUNDING, atol=1e-6)
    # Padding is a distribution too: what is not finite would stay so when it is multiplied by 0.
    assert torch.isfinite(got).all()


def test_a_sample_without_its_teacher_is_refused(tmp_path: Path) -> None:
    _, head = drawn(1, 6, 3)
    sample = taught(answers(head)[0], head, 20)
    with pytest.raises(ContractError, match="tail of sample 0"):
        write(tmp_path / "0.safetensors", [replace(sample, tail=None)], 20, "fp8")
    with pytest.raises(ContractError, match="top_ids of sample 0"):
        write(tmp_path / "0.safetensors", answers(head)[:1], 20, "fp8")
    with pytest.raises(ContractError, match="top_ids of sample 0"):
        write(tmp_path / "0.safetensors", [sample], 21, "fp8")


# Training.


def test_training_reads_it_and_notices_another_id(tmp_path: Path) -> None:
    exact, kept = write_samples(tmp_path / "bf16"), tmp_path / "teacher"
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(CONFIG.vocab_size, CONFIG.hidden_size, generator=generator) * 0.3
    index = kept / "states/tiny/000/index.json"
    path = index.with_name("00000.safetensors")
    source = StatesFile(exact[0].file)
    lengths = [b - a for a, b in zip(source.offsets, source.offsets[1:], strict=False)]
    widths = (CONFIG.aux_width, CONFIG.hidden_size)
    with StatesWriter(path, lengths, *widths, "key", "teacher", Teacher(8)) as writer:
        for each in source:
            writer.add(taught(each, head, 8))
    names = read_sidecar(exact[0].file.with_name("index.json"), "states")["files"][path.name]
    write_index(index, {path.name: names["samples"]}, CONFIG.layers, {}, {})
    reached = []
    for name, samples in (("bf16", exact), ("teacher", locate([index]))):
        trainer = make_trainer(tmp_path / name, samples, epochs=4)
        trainer.run()
        reached.append(trainer.state["epochs"][-1]["overall"]["accept_length"])
    assert reached[0] > 1.5
    assert reached[1] == pytest.approx(reached[0], abs=0.1)
    ids = StatesFile(path).column("top_ids").numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(ids)] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ContractError, match="sample 0 changed"):
        read_pack(locate([index]))


# What needs the final state, and what shows these.


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """index.json of a part of two samples."""
    folder = tmp_path / "states" / "chat" / "000"
    source = torch.Generator().manual_seed(0)
    head = torch.randn(100, HIDDEN, generator=source)
    samples = [taught(whole_sample(length, length), head, 10) for length in (5, 7)]
    path = folder / "00000.safetensors"
    with StatesWriter(path, [5, 7], 3 * HIDDEN, HIDDEN, "key", "teacher", Teacher(10)) as writer:
        for each in samples:
            writer.add(each)
    counts = {"samples": 2, "tokens": 12, "supervised": 7, "bytes": path.stat().st_size}
    how = {
        "target": "revision", "layers": LAYERS.as_dict(), "dtype": "bfloat16",
        **StatesSettings.model_validate({"codec": "teacher", "teacher": {"k": 10}}).stored(),
    }  # fmt: skip
    index = folder / "index.json"
    write_index(index, {path.name: ["a.0", "b.0"]}, LAYERS, counts, how)
    return index


@pytest.mark.parametrize("format", ["specforge", "speculators"])
def test_an_export_is_refused_before_anything_is_written(part: Path, format: str) -> None:
    out = part.parents[3] / "exported"
    with pytest.raises(DataError, match="no final states") as error:
        export([part], format, out)
    assert "states.codec: bf16" in str(error.value)
    assert not out.exists()
    write_part(part.parents[1] / "001", [[4]])
    with pytest.raises(ContractError, match="captured in another way"):
        export([part, part.parents[1] / "001" / "index.json"], format, out)


def test_training_on_two_codecs_is_refused(part: Path) -> None:
    other = part.parents[1] / "001" / "index.json"
    write_part(other.parent, [[4]])
    manifest = part.parents[2] / "manifest.json"
    write_manifest([part, other], manifest)
    with pytest.raises(ContractError, match="different layers or codecs"):
        TrainingSource.of_manifest(manifest)


def test_final_says_what_is_missing(part: Path) -> None:
    sample = StatesFile(part.with_name("00000.safetensors"))[0]
    with pytest.raises(ContractError, match="no final state"):
        sample.final()


def test_it_is_listed_shown_and_verified(part: Path) -> None:
    file = part.with_name("00000.safetensors")
    names = [name for name, *_ in file_facts(file).tensors]
    assert {"top_ids", "top_logprobs", "tail", "aux_scale"} < set(names)
    assert "last" not in names
    facts = sample_facts(file, "b.0")
    assert [name for name, *_ in facts.norms] == ["layer 2", "layer 3", "layer 5"]
    stored = StatesFile(file)[1]
    assert stored.top_logprobs is not None
    name, mean, least, largest = facts.shares[0]
    shares = stored.top_logprobs[:, 0].float().exp()
    assert name == "likeliest token"
    assert (mean, least, largest) == pytest.approx(
        (float(shares.mean()), float(shares.min()), float(shares.max()))
    )
    assert "beyond 10 tokens" in aerie("states", "show", str(file), "b.0").stdout
    listed = aerie("states", "ls", str(part)).stdout
    assert "codec: teacher" in listed and "'k': 10" in listed


def test_the_disk_gate_offers_what_is_smaller() -> None:
    with pytest.raises(GateError) as error:
        check_disk(Path("/"), 1000, 3, 7168, codec="fp8", free=22_000_000)
    assert "states.codec: teacher" in str(error.value)
    assert "states.codec: bf16" not in str(error.value)
    with pytest.raises(GateError) as error:
        check_disk(Path("/"), 1000, 3, 7168, codec="teacher", free=10)
    assert "states.codec" not in str(error.value)


def test_k_of_a_codec_that_has_none_is_no_parameter() -> None:
    plain = StatesSettings()
    other = StatesSettings.model_validate({"teacher": {"k": 16}})
    assert (plain.as_json(), plain.stored()) == (other.as_json(), {"codec": "bf16"})
    kept = [
        StatesSettings.model_validate({"codec": "teacher", "teacher": {"k": k}}) for k in (16, 64)
    ]
    assert kept[0].as_json() != kept[1].as_json()
    assert [StatesSettings.model_validate_json(each.as_json()) for each in kept] == kept
