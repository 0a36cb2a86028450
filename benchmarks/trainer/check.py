"""Check the fused operations against the plain ones, and a whole step against float64.

    python benchmarks/trainer/check.py                     # on a CUDA device, in bfloat16
    TRITON_INTERPRET=1 python benchmarks/trainer/check.py  # on the CPU, in float32

Inputs are random and outputs are poisoned before each call. An error is ||a - b|| / ||b||; the
reference is `aerie.train.ops.plain` in float64 on the same, rounded inputs. Ends with status 1 if
an error is above its limit.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerie.contracts.draft import DraftConfig
from aerie.contracts.layers import Layers
from aerie.contracts.states import Sample
from aerie.train.objective import Frozen, objective
from aerie.train.ops import fused, plain
from aerie.train.packing import Pack, Segments, make_pack
from aerie.train.weights import Weights

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
LIMIT = 1e-5 if INTERPRETED else 1e-2
# (heads, kv heads, head width): Kimi-K2.5's kind, grouped, and a group that is no power of two.
SHAPES = [(8, 8, 128), (8, 2, 64), (9, 3, 64)]


def config_of(heads: int, kv_heads: int, width: int, hidden: int = 256) -> DraftConfig:
    """A small draft."""
    return DraftConfig(
        hidden_size=hidden, intermediate_size=3 * hidden // 2, heads=heads, kv_heads=kv_heads,
        head_dim=width, vocab_size=1000, draft_vocab_size=640, max_position=4096, norm_eps=1e-5,
        rope={"rope_theta": 10000.0, "rope_type": "default"}, layers=Layers((1, 2, 3)),
    )  # fmt: skip


def random(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.full(shape, float("nan"), device=DEVICE, dtype=dtype)


def error(saw: Tensor, expected: Tensor) -> float:
    """Relative distance; NaN counts as infinitely far."""
    saw, expected = saw.double(), expected.double()
    distance = (saw - expected).norm() / expected.norm().clamp(min=1e-30)
    return float(torch.nan_to_num(distance, nan=float("inf")))


def rowwise() -> Iterator[tuple[str, float]]:
    """Norm, gate and shifted sum."""
    for rows, width in ((37, 576), (700, 7168)) if not INTERPRETED else ((5, 576),):
        x, weight, grad, residual = random(rows, width), random(width), random(rows, width), None
        for residual in (None, random(rows, width)):
            out, wide = poisoned(rows, width), torch.empty(rows, width).double().to(DEVICE)
            weights = fused.norm_backward(grad, x, weight, 1e-5, residual, out)
            expected = plain.norm_backward(
                grad.double(), x.double(), weight.double(), 1e-5,
                None if residual is None else residual.double(), wide,
            )  # fmt: skip
            yield f"norm_backward {width}", error(out, wide)
            yield f"norm_backward weight {width}", error(weights, expected)
        if not INTERPRETED:  # the interpreter rounds to fp8 in its own way
            some = random(rows, width + 8)[:, :width]
            rounded, scale = fused.quantise(some)
            exact, wide_scale = plain.quantise(some)
            yield f"quantise {width}", error(rounded.float() * scale, exact.float() * wide_scale)
        out = fused.norm(x, weight, 1e-5, poisoned(rows, width))
        yield f"norm {width}", error(out, plain.norm(x.double(), weight.double(), 1e-5, wide))
        gate_up, grad = random(rows, 2 * width), random(rows, width)
        wide_gate_up, wide_out = gate_up.double(), wide
        yield f"gate {width}", error(fused.gate(gate_up), plain.gate(wide_gate_up))
        activated = poisoned(rows, width)
        fused.gate_backward_(gate_up, grad, activated)
        plain.gate_backward_(wide_gate_up, grad.double(), wide_out)
        yield f"gate_backward {width}", error(gate_up, wide_gate_up)
        yield f"gate again {width}", error(activated, wide_out)
        grads = random(4, rows, width)
        yield (
            f"shifted_sum {width}",
            error(fused.shifted_sum(grads), plain.shifted_sum(grads.double())),
        )


def losses() -> Iterator[tuple[str, float]]:
    """Soft-target cross-entropy: losses, hits, gradient, and rows that do not count."""
    rows, width = (4, 5000) if INTERPRETED else (300, 32000)
    logits, shares = random(rows, width) * 4, (random(rows, width).float() * 3).softmax(-1)
    source = torch.randint(rows, (rows,), device=DEVICE)
    weights = torch.rand(rows, device=DEVICE) * (torch.rand(rows, device=DEVICE) < 0.7)
    labels = torch.where(torch.rand(rows, device=DEVICE) < 0.5, logits.float().argmax(-1), -1)
    wide = logits.double()
    loss, hits = fused.cross_entropy_(logits, shares, source, weights, labels)
    wide_loss, wide_hits = plain.cross_entropy_(
        wide, shares.double(), source, weights.double(), labels
    )
    yield "loss", error(loss, wide_loss)
    yield "loss gradient", error(logits, wide)
    yield "hits", float((hits.bool() != wide_hits).sum())


def adamw() -> Iterator[tuple[str, float]]:
    """AdamW against torch's, over some steps, one of them not taken."""
    size = 5003
    state = [torch.randn(size, device=DEVICE), *(torch.zeros(2, size, device=DEVICE))]
    other = [each.double() for each in state]
    products = poisoned(size)
    for number, taken in ((1.0, 1.0), (2.0, 0.0), (2.0, 1.0), (3.0, 1.0)):
        gradient = random(size)
        scalars = torch.tensor([0.5, number, taken], device=DEVICE)
        fused.adamw_(*state, gradient, products, scalars, 1e-2, (0.9, 0.95), 0.1)
        plain.adamw_(*other, gradient.double(), other[0], scalars, 1e-2, (0.9, 0.95), 0.1)
    for name, one, two in zip(("weights", "first", "second"), state, other, strict=True):
        yield f"adamw {name}", error(one, two)
    yield "adamw products", error(products, other[0])


def make_samples(config: DraftConfig, shapes: list[tuple[int, int]]) -> list[Sample]:
    """Samples of (prompt, answer) tokens."""
    samples = []
    for prompt, answer in shapes:
        length = prompt + answer
        samples.append(
            Sample(
                torch.randint(config.vocab_size, (length,), dtype=torch.int32),
                torch.tensor([0] * prompt + [1] * answer, dtype=torch.uint8),
                torch.randn(length, config.aux_width).bfloat16(),
                torch.randn(length, config.hidden_size).bfloat16(),
            )
        )
    return samples


def attention() -> Iterator[tuple[str, float]]:
    """Rotation and attention with own keys, over several samples and padding."""
    for heads, kv, width in SHAPES:
        config = config_of(heads, kv, width)
        shapes = [(3, 4), (2, 6)] if INTERPRETED else [(100, 200), (5, 40), (300, 500)]
        pack = make_pack(make_samples(config, shapes), 20 if INTERPRETED else 1300).to(DEVICE)
        name = f"{heads}/{kv}x{width}"
        yield from _rotation(name, heads, width)
        yield from _attention(name, config, pack)


def _rotation(name: str, heads: int, width: int) -> Iterator[tuple[str, float]]:
    whole = random(21, heads + 5, width)
    x, angles = whole[:, :heads], torch.rand(21, width // 2, device=DEVICE) * 6
    for inverse in (False, True):
        wide = x.double()
        fused.rotate_(x, angles.cos(), angles.sin(), inverse)
        plain.rotate_(wide, angles.cos().double(), angles.sin().double(), inverse)
        yield f"rotate {name}", error(x, wide)


def _attention(name: str, config: DraftConfig, pack: Pack) -> Iterator[tuple[str, float]]:
    n, s, steps = len(pack.token_ids), len(pack.supervised), 4
    heads, kv, width = config.heads, config.kv_heads, config.head_dim
    keys, values = random(n, 2 * kv, width).split(kv, 1)
    own = random(steps, s, 2, kv, width)
    queries, grads = random(steps, s, heads, width), random(steps, s, heads, width)
    # Padding sees nothing, and what it gets has no meaning.
    grads[:, ~pack.active(0)] = 0
    attended, totals = poisoned(steps, s, heads, width), poisoned(steps, heads, s).float()
    deltas = torch.zeros_like(totals)
    wide_attended, wide_totals = attended.double(), totals.double()
    wide_deltas = torch.zeros_like(wide_totals)
    real = pack.active(0)
    for step in range(steps):
        arguments = (queries[step], keys, values, own[:step])
        wide = tuple(each.double() for each in arguments)
        fused.attention(*arguments, pack.segments, attended[step], totals[step])
        plain.attention(*wide, pack.segments, wide_attended[step], wide_totals[step])
        yield f"attention {name} {step}", error(attended[step][real], wide_attended[step][real])
        yield f"log total {name} {step}", error(totals[step][:, real], wide_totals[step][:, real])
        saw = fused.attention_backward(
            grads[step], *arguments, attended[step], totals[step], pack.segments, deltas[step]
        )
        expected = plain.attention_backward(
            grads[step].double(), *wide, wide_attended[step], wide_totals[step], pack.segments,
            wide_deltas[step],
        )  # fmt: skip
        for part, one, two in zip(("queries", "keys", "values"), saw, expected, strict=True):
            yield f"attention_backward {part} {name} {step}", error(one, two)
    yield f"deltas {name}", error(deltas[1:], wide_deltas[1:])
    saw_own = fused.own_backward(grads[1:], queries[1:], own[0], totals[1:], deltas[1:])
    expected_own = plain.own_backward(
        grads[1:].double(), queries[1:].double(), own[0].double(), wide_totals[1:], wide_deltas[1:]
    )
    yield f"own_backward {name}", error(saw_own, expected_own)


def whole_step() -> Iterator[tuple[str, float]]:
    """Loss and gradient of a step in bfloat16 against float64; and the same bytes twice."""
    for heads, kv, width in SHAPES:
        config = config_of(heads, kv, width)
        pack = make_pack(make_samples(config, [(40, 90), (10, 33), (60, 150)]), 512).to(DEVICE)
        weights = Weights.zeros(config, DTYPE, DEVICE)
        for view in weights.named.values():
            torch.nn.init.normal_(view, 1.0 if view.dim() == 1 else 0.0, 0.06)
        ids = torch.arange(config.vocab_size, device=DEVICE)
        frozen = Frozen(
            random(config.vocab_size, config.hidden_size), random(640, config.hidden_size) * 0.1,
            torch.where(ids < 640, ids, -1),
        )  # fmt: skip
        wide = Weights(config, weights.flat.double())
        wide_frozen = Frozen(frozen.embedding.double(), frozen.head.double(), frozen.draft_ids)
        gradients = [Weights(config, torch.full_like(weights.flat, float("nan"))) for _ in range(2)]
        saw = [objective(weights, each, frozen, pack, 5, 0.8) for each in gradients]
        again = Weights(config, torch.full_like(weights.flat, float("nan")))
        checkpointed = objective(weights, again, frozen, pack, 5, 0.8, recompute=True)
        same = torch.equal(checkpointed.loss, saw[0].loss)
        wide_gradient = Weights(config, torch.zeros_like(wide.flat))
        expected = objective(wide, wide_gradient, wide_frozen, pack, 5, 0.8)
        rough = Weights(config, torch.full_like(weights.flat, float("nan")))
        fp8 = objective(weights, rough, frozen, pack, 5, 0.8, fp8=True)
        name = f"{heads}/{kv}x{width}"
        yield f"fp8 loss {name}", error(fp8.loss, expected.loss)
        for part, view in rough.named.items():
            # Four bits instead of eight.
            yield f"fp8 {part} {name}", error(view, wide_gradient.named[part]) / 16
        yield f"checkpointed loss {name}", 0.0 if same else float("inf")
        for part, view in again.named.items():
            yield f"checkpointed {part} {name}", error(view, wide_gradient.named[part]) / 3
        yield f"step loss {name}", error(saw[0].loss, expected.loss)
        for part, view in gradients[0].named.items():
            # A gradient is a difference of products that were each rounded to bf16.
            yield f"step {part} {name}", error(view, wide_gradient.named[part]) / 3
        same = all(
            torch.equal(view, gradients[1].named[part]) for part, view in gradients[0].named.items()
        )
        yield f"step twice the same {name}", 0.0 if same else float("inf")


def _plain_shared(
    queries: Tensor, keys: Tensor, values: Tensor, segments: Segments, attended: Tensor,
    log_total: Tensor,
) -> None:  # fmt: skip
    none = queries.new_empty(0, len(queries), 2, *keys.shape[1:])
    plain.attention(queries, keys, values, none, segments, attended, log_total)
    log_total[log_total.isneginf()] = float("inf")


def _plain_shared_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, attended: Tensor,
    log_total: Tensor, segments: Segments,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    none = queries.new_empty(0, len(queries), 2, *keys.shape[1:])
    return plain.attention_backward(
        grad, queries, keys, values, none, attended, log_total, segments,
        torch.empty_like(log_total),
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    groups: list[Callable[[], Iterator[tuple[str, float]]]] = [rowwise, losses, adamw]
    groups += [attention] if INTERPRETED else [attention, whole_step]
    if INTERPRETED:
        # FlashAttention has no interpreter; the kernels around it have.
        fused.shared_attention = _plain_shared
        fused.shared_attention_backward = _plain_shared_backward
    results = {name: value for group in groups for name, value in group()}
    failed = {name: value for name, value in results.items() if not value <= LIMIT}
    print(json.dumps({"worst": max(results.values()), "checks": len(results), "failed": failed}))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
