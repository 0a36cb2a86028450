"""The trainer's objective equals the float64 reference: loss, gradients, labels."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.states import Sample
from aerie.train.evaluate import correct_prefix, simulate
from aerie.train.model import Draft, attend
from aerie.train.objective import Frozen, Result, logits_of, objective
from aerie.train.ops import plain
from aerie.train.packing import make_pack, plan_packs, supervised_rows
from aerie.train.tally import walk
from aerie.train.unroll import unroll
from aerie.train.weights import Weights
from tests.unit.reference_objective import reference_loss

VOCAB, MAP, STEPS, DECAY = 40, 24, 3, 0.8
CONFIG = DraftConfig(
    hidden_size=16,
    intermediate_size=24,
    heads=4,
    kv_heads=2,
    head_dim=4,
    vocab_size=VOCAB,
    draft_vocab_size=MAP,
    max_position=128,
    norm_eps=1e-5,
    rope={"rope_theta": 10000.0, "rope_type": "default"},
    layers=Layers((1, 2, 3)),
)
# Dimension 0 is left as it is and dimension 1 divided; cosines and sines are 1.14 times as large.
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4, "beta_slow": 1,
    "original_max_position_embeddings": 32,
}  # fmt: skip
Shape = tuple[int, int]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_draft(config: DraftConfig = CONFIG) -> Draft:
    torch.manual_seed(1)
    draft = Draft(config).double()
    for parameter in draft.parameters():
        torch.nn.init.normal_(parameter, 0.3 if parameter.dim() == 1 else 0.0, 0.4)
    return draft


def make_samples(shapes: Sequence[Shape]) -> list[Sample]:
    generator = torch.Generator().manual_seed(2)
    samples = []
    for prompt, answer in shapes:
        length = prompt + answer
        samples.append(
            Sample(
                torch.randint(VOCAB, (length,), generator=generator, dtype=torch.int32),
                torch.tensor([0] * prompt + [1] * answer, dtype=torch.uint8),
                torch.randn(length, CONFIG.aux_width, generator=generator, dtype=torch.float64),
                torch.randn(length, CONFIG.hidden_size, generator=generator, dtype=torch.float64),
            )
        )
    return samples


def make_frozen() -> Frozen:
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator, dtype=torch.float64)
    head = torch.randn(MAP, CONFIG.hidden_size, generator=generator, dtype=torch.float64)
    draft_ids = torch.full((VOCAB,), -1)
    draft_ids[torch.arange(MAP) + 7] = torch.arange(MAP)
    return Frozen(embedding, head, draft_ids)


def ours(
    draft: Draft, samples: Sequence[Sample], rows: int = 0, steps: int = STEPS
) -> tuple[Result, Weights]:
    """Loss and gradient of the trainer; what it leaves unwritten stays NaN."""
    weights = Weights.of(draft.config, draft.state_dict())
    gradient = Weights.zeros(draft.config, torch.float64, torch.device("cpu"))
    gradient.flat.fill_(float("nan"))
    pack = make_pack(samples, rows)
    return objective(weights, gradient, make_frozen(), pack, steps, DECAY), gradient


def theirs(draft: Draft, samples: Sequence[Sample], steps: int = STEPS, shift: int = 0) -> Tensor:
    """The reference's loss."""
    frozen = make_frozen()
    return reference_loss(draft, frozen.embedding, frozen.head, samples, steps, DECAY, shift)


shapes = st.lists(st.tuples(st.integers(1, 6), st.integers(2, 9)), min_size=1, max_size=4)


@settings(max_examples=8, deadline=None)
@given(shapes, st.integers(1, 4), st.integers(0, 50))
def test_equals_the_reference_over_random_packings(
    shapes: list[Shape], steps: int, rows: int
) -> None:
    draft, samples = make_draft(), make_samples(shapes)
    result, gradient = ours(draft, samples, rows, steps)
    expected = theirs(draft, samples, steps)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-11)
    expected.backward()
    for name, parameter in draft.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradient.named[name], parameter.grad, rtol=1e-9, atol=1e-11)


def test_equals_the_reference_with_yarn() -> None:
    draft, samples = make_draft(replace(CONFIG, rope=YARN)), make_samples([(4, 8), (3, 6)])
    result, gradient = ours(draft, samples)
    expected = theirs(draft, samples)
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-11)
    assert abs(result.loss.item() - ours(make_draft(), samples)[0].loss.item()) > 1e-4
    expected.backward()
    for name, parameter in draft.named_parameters():
        torch.testing.assert_close(gradient.named[name], parameter.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("steps", [1, 4])
def test_activation_checkpointing_changes_neither_loss_nor_gradient(steps: int) -> None:
    draft, samples = make_draft(), make_samples([(4, 8), (3, 6)])
    whole, gradient = ours(draft, samples, steps=steps)
    weights, again = Weights.of(CONFIG, draft.state_dict()), Weights(CONFIG, gradient.flat.clone())
    again.flat.fill_(float("nan"))
    result = objective(
        weights, again, make_frozen(), make_pack(samples), steps, DECAY, recompute=True
    )
    assert torch.equal(result.loss, whole.loss)
    for name, view in gradient.named.items():
        torch.testing.assert_close(again.named[name], view, rtol=1e-10, atol=1e-12)


def test_a_shift_by_one_is_seen() -> None:
    """Negative control: the comparison above would notice labels that are one row off."""
    draft, samples = make_draft(), make_samples([(4, 8), (3, 6)])
    spoiled = theirs(draft, samples, shift=-1)
    assert abs(ours(draft, samples)[0].loss.item() - spoiled.item()) > 1e-3


def test_a_wrong_shift_of_the_embeddings_half_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the gradient: sums of the steps at one shift too many."""
    draft, samples = make_draft(), make_samples([(4, 8)])
    right = ours(draft, samples)[1].qkv_embeds.clone()
    plain_sum = plain.shifted_sum
    monkeypatch.setattr(plain, "shifted_sum", lambda grads: plain_sum(grads).roll(1, 0))
    assert (ours(draft, samples)[1].qkv_embeds - right).abs().max() > 1e-3


def test_chunks_of_the_head_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, samples = make_draft(), make_samples([(4, 8), (3, 6)])
    whole, gradient = ours(draft, samples)
    monkeypatch.setattr("aerie.train.objective._CHUNK", 128)
    parts, other = ours(draft, samples)
    assert parts.loss.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    for name, view in gradient.named.items():
        torch.testing.assert_close(other.named[name], view, rtol=1e-10, atol=1e-12)


def test_two_packs_with_common_counts_add_up_to_one() -> None:
    """What accumulation and data parallelism rest on."""
    draft, samples = make_draft(), make_samples([(3, 5), (4, 6), (2, 7)])
    whole, gradient = ours(draft, samples)
    weights = Weights.of(CONFIG, draft.state_dict())
    counts = [make_pack(samples).count(step) for step in range(STEPS)]
    loss, total = 0.0, torch.zeros_like(gradient.flat)
    for part in (samples[:1], samples[1:]):
        one = Weights(CONFIG, torch.zeros_like(total))
        result = objective(weights, one, make_frozen(), make_pack(part), STEPS, DECAY, counts)
        loss += result.loss.item()
        total += one.flat
    assert loss == pytest.approx(whole.loss.item(), rel=1e-12)
    for name, view in gradient.named.items():
        torch.testing.assert_close(Weights(CONFIG, total).named[name], view, rtol=1e-9, atol=1e-11)


def test_bfloat16_is_within_what_bfloat16_explains() -> None:
    draft, samples = make_draft(), make_samples([(4, 8), (3, 6)])
    weights = Weights.of(CONFIG, draft.state_dict())
    rough = Weights(CONFIG, weights.flat.bfloat16())
    weights.flat.copy_(rough.flat)
    frozen = make_frozen()
    rough_frozen = Frozen(frozen.embedding.bfloat16(), frozen.head.bfloat16(), frozen.draft_ids)
    frozen = Frozen(rough_frozen.embedding.double(), rough_frozen.head.double(), frozen.draft_ids)
    gradients = [Weights(CONFIG, torch.zeros_like(each.flat)) for each in (weights, rough)]
    rounded = [
        Sample(each.token_ids, each.loss_mask, each.aux.bfloat16(), each.final().bfloat16())
        for each in samples
    ]
    pack = make_pack(rounded)
    exact = objective(weights, gradients[0], frozen, pack, STEPS, DECAY)
    other = objective(rough, gradients[1], rough_frozen, pack, STEPS, DECAY)
    assert other.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    for name, view in gradients[0].named.items():
        distance = (gradients[1].named[name].double() - view).norm() / view.norm()
        assert distance < 0.05, name


def test_the_trainer_computes_what_an_engine_does() -> None:
    """The draft module is what serves; its first step equals the trainer's on every row."""
    draft, samples = make_draft(), make_samples([(1, 9)])
    weights, frozen = Weights.of(CONFIG, draft.state_dict()), make_frozen()
    pack = make_pack(samples)
    ours = unroll(weights, frozen.embedding, pack, 1).outputs[0]
    with torch.no_grad():
        hidden = draft.reduce(pack.aux)
        fused = draft.fuse(frozen.embedding[pack.token_ids], hidden)
        keys, values = draft.keys_values(fused, pack.positions)
        queries = draft.queries(fused, pack.positions)
        for number, row in enumerate(pack.supervised[pack.active(0)].tolist()):
            attended = attend(queries[row : row + 1], keys[: row + 1], values[: row + 1])
            out = draft.finish(hidden[row : row + 1], attended)
            torch.testing.assert_close(ours[number : number + 1], out, rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(
                logits_of(weights, ours[number : number + 1]), draft.logits(out)
            )


def test_packing_leaks_nothing_across_samples() -> None:
    draft, samples = make_draft(), make_samples([(3, 5), (4, 6), (2, 7)])
    weights, embedding = Weights.of(CONFIG, draft.state_dict()), make_frozen().embedding
    pack, packs = make_pack(samples), [make_pack([sample]) for sample in samples]
    together = unroll(weights, embedding, pack, STEPS).outputs
    alone = [unroll(weights, embedding, each, STEPS).outputs for each in packs]
    for step, output in enumerate(together):
        expected = torch.cat(
            [one[step][each.active(step)] for each, one in zip(packs, alone, strict=True)]
        )
        torch.testing.assert_close(output[pack.active(step)], expected, rtol=1e-12, atol=1e-12)


def test_padding_changes_nothing() -> None:
    draft, samples = make_draft(), make_samples([(3, 5), (4, 6)])
    weights, frozen = Weights.of(CONFIG, draft.state_dict()), make_frozen()
    results = [ours(draft, samples, rows)[0].loss.item() for rows in (0, 64)]
    assert results[0] == pytest.approx(results[1], rel=1e-12)
    packs = [make_pack(samples, rows) for rows in (0, 64)]
    assert [pack.count(1) for pack in packs] == [packs[0].count(1)] * 2
    walks = [simulate(weights, frozen.embedding, frozen.draft_ids, [pack], STEPS) for pack in packs]
    assert walks[0] == walks[1]


def test_segments_and_mask_say_the_same() -> None:
    samples = make_samples([(3, 5), (4, 6), (2, 7)])
    pack = make_pack(samples, 40)
    owner = torch.repeat_interleave(torch.arange(4), pack.segments.key_bounds.diff().long())
    at = pack.supervised[pack.active(0)]
    expected = (owner[at, None] == owner) & (torch.arange(40) <= at[:, None])
    assert torch.equal(pack.segments.visible[pack.active(0)], expected)
    assert pack.segments.longest_keys == int(pack.segments.key_bounds.diff().max())


@given(st.lists(st.booleans(), max_size=12))
def test_a_row_is_supervised_iff_the_next_two_tokens_are_output(mask: list[bool]) -> None:
    rows = supervised_rows(torch.tensor(mask, dtype=torch.uint8)).tolist()
    assert rows == [p for p in range(len(mask) - 2) if mask[p + 1] and mask[p + 2]]


def test_labels_and_teacher_are_the_tokens_after() -> None:
    sample = make_samples([(3, 5)])[0]
    pack = make_pack([sample])
    real = pack.active(0)
    rows = pack.supervised[real].tolist()
    assert rows == [2, 3, 4, 5]
    assert pack.labels[real].tolist() == [int(sample.token_ids[p + 2]) for p in rows]
    assert pack.teacher is not None and torch.equal(
        pack.teacher[real], sample.final()[[p + 1 for p in rows]]
    )
    assert pack.remaining[real].tolist() == [3, 2, 1, 0]


def test_the_loss_does_not_depend_on_unsupervised_rows() -> None:
    """SpecForge's does: there, padding and prompts change the scale of the loss."""
    counts = [
        [make_pack(make_samples([(prompt, 6)])).count(step) for step in range(STEPS)]
        for prompt in (3, 9)
    ]
    assert counts[0] == counts[1] == [5, 4, 3]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.integers(10, 40),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_packs_hold_every_sample_once_within_the_budget(
    lengths: list[int], budget: int, seed: int, epoch: int
) -> None:
    packs = plan_packs(lengths, budget, seed, epoch)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[i] for i in pack) <= budget for pack in packs)
    assert packs == plan_packs(lengths, budget, seed, epoch)


def brute_force_rounds(prefix: list[int], k: int) -> tuple[int, int]:
    """Serve the answer token by token: (rounds, accepted draft tokens)."""
    position, rounds, accepted = 0, 0, 0
    while position < len(prefix):
        kept = 0
        while kept < k and position + kept < len(prefix) and prefix[position] > kept:
            kept += 1
        rounds, accepted = rounds + 1, accepted + kept
        position += kept + 1
    return rounds, accepted


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 4))
def test_the_walk_counts_as_serving_does(prefix: list[int], k: int) -> None:
    prefix = [min(value, k) for value in prefix]
    tally = walk(prefix, k)
    assert (tally.rounds, sum(tally.accepted)) == brute_force_rounds(prefix, k)
    assert all(kept <= reached for kept, reached in zip(tally.accepted, tally.reached, strict=True))


def test_a_token_outside_the_map_is_a_miss() -> None:
    samples, frozen = make_samples([(3, 8)]), make_frozen()
    weights = Weights.of(CONFIG, make_draft().state_dict())
    pack = make_pack(samples)
    nothing = torch.full_like(frozen.draft_ids, -1)
    assert correct_prefix(weights, frozen.embedding, nothing, pack, STEPS).sum() == 0
    tally = simulate(weights, frozen.embedding, nothing, [pack], STEPS)[0]
    assert tally.accept_length == 1
    assert tally.rounds == int(pack.active(0).sum())
