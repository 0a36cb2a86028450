"""The trainer's objective equals the float64 reference: loss, gradients, labels."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.contracts.draft import DraftConfig
from aerie.contracts.states import Layers, Sample
from aerie.train.evaluate import correct_prefix, simulate
from aerie.train.model import Draft
from aerie.train.objective import objective, unroll
from aerie.train.packing import make_pack, plan_packs, supervised_rows
from aerie.train.tally import walk
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
Shape = tuple[int, int]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_draft() -> Draft:
    torch.manual_seed(1)
    draft = Draft(CONFIG).double()
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


def weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(VOCAB, CONFIG.hidden_size, generator=generator, dtype=torch.float64)
    head = torch.randn(MAP, CONFIG.hidden_size, generator=generator, dtype=torch.float64)
    draft_ids = torch.full((VOCAB,), -1)
    draft_ids[torch.arange(MAP) + 7] = torch.arange(MAP)
    return embedding, head, draft_ids


def loss_and_gradients(draft: Draft, loss: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    return loss.item(), list(torch.autograd.grad(loss, list(draft.parameters())))


shapes = st.lists(st.tuples(st.integers(1, 6), st.integers(2, 9)), min_size=1, max_size=4)


@settings(max_examples=6, deadline=None)
@given(shapes)
def test_equals_the_reference_over_random_packings(shapes: list[Shape]) -> None:
    draft, samples = make_draft(), make_samples(shapes)
    embedding, head, draft_ids = weights()
    ours = objective(draft, embedding, head, draft_ids, make_pack(samples), STEPS, DECAY).loss
    theirs = reference_loss(draft, embedding, head, samples, STEPS, DECAY)
    (our_loss, our_gradients), (their_loss, their_gradients) = (
        loss_and_gradients(draft, loss) for loss in (ours, theirs)
    )
    assert our_loss == pytest.approx(their_loss, rel=1e-11)
    for one, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_shift_by_one_is_seen() -> None:
    """Negative control: the comparison above would notice labels that are one row off."""
    draft, samples = make_draft(), make_samples([(4, 8), (3, 6)])
    embedding, head, draft_ids = weights()
    ours = objective(draft, embedding, head, draft_ids, make_pack(samples), STEPS, DECAY).loss
    spoiled = reference_loss(draft, embedding, head, samples, STEPS, DECAY, shift=-1)
    assert abs(ours.item() - spoiled.item()) > 1e-3


def test_packing_leaks_nothing_across_samples() -> None:
    draft, samples = make_draft(), make_samples([(3, 5), (4, 6), (2, 7)])
    embedding = weights()[0]
    pack, packs = make_pack(samples), [make_pack([sample]) for sample in samples]
    together = list(unroll(draft, embedding, pack, STEPS))
    alone = [list(unroll(draft, embedding, each, STEPS)) for each in packs]
    for step, logits in enumerate(together):
        expected = torch.cat(
            [one[step][each.active(step)] for each, one in zip(packs, alone, strict=True)]
        )
        torch.testing.assert_close(logits[pack.active(step)], expected, rtol=1e-12, atol=1e-12)


def test_padding_changes_nothing() -> None:
    draft, samples = make_draft(), make_samples([(3, 5), (4, 6)])
    embedding, head, draft_ids = weights()
    results = [
        objective(draft, embedding, head, draft_ids, make_pack(samples, rows), STEPS, DECAY)
        for rows in (0, 64)
    ]
    assert results[0].loss.item() == pytest.approx(results[1].loss.item(), rel=1e-12)
    assert results[0].counts.tolist() == results[1].counts.tolist()
    walks = [
        simulate(draft, embedding, draft_ids, [make_pack(samples, rows)], STEPS) for rows in (0, 64)
    ]
    assert walks[0] == walks[1]


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
    assert torch.equal(pack.teacher[real], sample.last[[p + 1 for p in rows]])
    assert pack.remaining[real].tolist() == [3, 2, 1, 0]


def test_the_loss_does_not_depend_on_unsupervised_rows() -> None:
    """SpecForge's does: there, padding and prompts change the scale of the loss."""
    draft = make_draft()
    embedding, head, draft_ids = weights()
    sample = make_samples([(3, 6)])[0]
    padded = Sample(
        torch.cat((sample.token_ids[:1].repeat(1), sample.token_ids)),
        torch.cat((torch.zeros(1, dtype=torch.uint8), sample.loss_mask)),
        torch.cat((sample.aux[:1], sample.aux)),
        torch.cat((sample.last[:1], sample.last)),
    )
    results = [
        objective(draft, embedding, head, draft_ids, make_pack([each]), STEPS, DECAY)
        for each in (sample, padded)
    ]
    assert results[0].counts.tolist() == results[1].counts.tolist()


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
    draft, samples = make_draft(), make_samples([(3, 8)])
    embedding, _, draft_ids = weights()
    pack = make_pack(samples)
    nothing = torch.full_like(draft_ids, -1)
    assert correct_prefix(draft, embedding, nothing, pack, STEPS).sum() == 0
    tally = simulate(draft, embedding, nothing, [pack], STEPS)[0]
    assert tally.accept_length == 1
    assert tally.rounds == int(pack.active(0).sum())
