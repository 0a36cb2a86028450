"""Products in fp8: what is multiplied, how far it is from bfloat16, and where it is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aerie.errors import ConfigError
from aerie.train.objective import Frozen, objective
from aerie.train.ops import plain
from aerie.train.packing import make_pack
from aerie.train.products import Float8, Products, check_fp8
from aerie.train.weights import Weights
from tests.unit.test_objective import make_samples
from tests.unit.train_fixtures import CONFIG, MAP, VOCAB, make_trainer, write_samples

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
NAMES = ("qkv_hidden", "o", "gate_up", "down")


def new_weights() -> Weights:
    torch.manual_seed(0)
    weights = Weights.zeros(CONFIG, torch.bfloat16, CPU)
    for view in weights.named.values():
        torch.nn.init.normal_(view, 1.0 if view.dim() == 1 else 0.0, 0.1)
    return weights


def distance(saw: torch.Tensor, expected: torch.Tensor) -> float:
    return float((saw.double() - expected.double()).norm() / expected.double().norm())


def emulated(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right.t() of what fp8 makes of both, in float64."""
    one, two = (q.double() * scale for q, scale in (plain.quantise(left), plain.quantise(right)))
    return one @ two.t()


@pytest.mark.parametrize("name", NAMES)
def test_products_are_those_of_the_rounded_numbers(name: str) -> None:
    weights = new_weights()
    weight = getattr(weights, name)
    products, exact = Float8(weights), Products(weights)
    # Rows of very different size, as gradients are.
    sizes = torch.logspace(-6, 3, 128)[:, None]
    x = (torch.randn(128, weight.shape[1]) * sizes).bfloat16()
    base, out = torch.randn(128, len(weight)).bfloat16(), torch.empty(128, len(weight)).bfloat16()
    products.forward(name, x, out)
    assert distance(out, emulated(x, weight)) < 2**-8
    # Each row by itself is near the product of the numbers as they are, and not equal to it.
    for row, expected in zip(out, exact.forward(name, x, torch.empty_like(out)), strict=True):
        assert 1e-3 < distance(row, expected) < 0.1
    added = products.forward(name, x, torch.empty_like(out), base)
    assert distance(added, out.double() + base) < 2**-8
    grad = (torch.randn(128, len(weight)) * sizes).bfloat16()
    back = products.backward(name, grad)
    assert distance(back, emulated(grad, weight.t())) < 2**-8
    assert torch.equal(products.backward(name, grad, torch.empty_like(back)), back)


@given(st.lists(st.floats(-(2.0**100), 2.0**100), min_size=1, max_size=20))
def test_a_row_is_rounded_by_its_own_scale(row: list[float]) -> None:
    x = torch.tensor([row, [0.0] * len(row)]).bfloat16()
    rounded, scales = plain.quantise(x)
    back = rounded.float() * scales
    assert not back[1].any() and back.isfinite().all()
    # Half a unit in the last place of four bits, or half the smallest number there is.
    exact = x.double()
    error = (back - exact).abs()
    allowed = torch.maximum(exact.abs() / 16, exact.abs().max() / 448 * 2**-10)
    assert (error <= 1.001 * allowed + 1e-30).all()


def test_numbers_that_are_not_finite_stay_so() -> None:
    """Else a step that is to be skipped would be taken."""
    for bad in (float("inf"), float("nan")):
        rounded, scales = plain.quantise(torch.tensor([[1.0, bad]]).bfloat16())
        assert not (rounded.float() * scales).isfinite().all()


@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradient_are_near_those_of_bfloat16(recompute: bool) -> None:
    weights = new_weights()
    ids = torch.arange(VOCAB)
    frozen = Frozen(
        torch.randn(VOCAB, CONFIG.hidden_size).bfloat16(),
        torch.randn(MAP, CONFIG.hidden_size).bfloat16(),
        torch.where(ids < MAP, ids, -1),
    )
    samples = [replace(each, **wider(each)) for each in make_samples([(4, 30), (3, 60)])]
    pack = make_pack(samples)
    gradients = [Weights.zeros(CONFIG, torch.bfloat16, CPU) for _ in range(2)]
    results = [
        objective(weights, gradient, frozen, pack, 3, 0.8, recompute=recompute, fp8=fp8)
        for gradient, fp8 in zip(gradients, (False, True), strict=True)
    ]
    exact, rough = (float(result.loss) for result in results)
    assert exact != rough and rough == pytest.approx(exact, rel=0.02)
    for name, view in gradients[0].named.items():
        assert 0 < distance(gradients[1].named[name], view) < 0.15, name


def wider(sample: Any) -> dict[str, torch.Tensor]:
    """States as wide as this draft's."""
    length = len(sample.token_ids)
    return {
        "aux": torch.randn(length, CONFIG.aux_width).bfloat16(),
        "last": torch.randn(length, CONFIG.hidden_size).bfloat16(),
    }


def test_a_draft_learns_with_fp8(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, write_samples(tmp_path), dtype="bfloat16", fp8=True, epochs=4
    )  # fmt: skip
    trainer.run()
    losses = [record["loss"] for record in trainer.state["records"]]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert trainer.state["epochs"][-1]["overall"]["accept_length"] > 1.5


def test_where_fp8_is_not_possible_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    check_fp8(CONFIG, torch.bfloat16, CPU)
    with pytest.raises(ConfigError, match="fp8: false"):
        check_fp8(CONFIG, torch.float32, CPU)
    with pytest.raises(ConfigError, match="multiples of 16"):
        check_fp8(replace(CONFIG, intermediate_size=40), torch.bfloat16, CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(ConfigError, match="NVIDIA A100"):
        check_fp8(CONFIG, torch.bfloat16, torch.device("cuda", 0))
