"""What is captured equals what transformers says the hidden states are."""

import pytest
import torch

from aerie.contracts.layers import Layers
from aerie.engines.transformers.capture import capture
from aerie.engines.transformers.load import load_model
from aerie.errors import EngineError
from aerie.target import Target

BATCH = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15, 16]]
LAYERS = Layers((2, 4, 7))


def test_equals_the_hidden_states_of_transformers(tiny_target: Target) -> None:
    model = load_model(tiny_target)
    captured = capture(model, BATCH, LAYERS)
    for ids, states in zip(BATCH, captured, strict=True):
        with torch.no_grad():
            truth = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        aux = torch.cat([truth[layer][0] for layer in LAYERS.hf_hidden_states], dim=-1)
        for saw, expected in ((states.aux, aux), (states.last, truth[-1][0])):
            assert saw.dtype == torch.bfloat16
            assert saw.shape == expected.shape
            # Padding changes the order of sums: less than the rounding to bf16 does.
            torch.testing.assert_close(saw.float(), expected, rtol=2**-7, atol=1e-4)


def test_without_padding_it_is_exact(tiny_target: Target) -> None:
    model = load_model(tiny_target)
    ids = BATCH[0]
    with torch.no_grad():
        truth = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    (states,) = capture(model, [ids], LAYERS)
    aux = torch.cat([truth[layer][0] for layer in LAYERS.hf_hidden_states], dim=-1)
    assert torch.equal(states.aux, aux.bfloat16())
    assert torch.equal(states.last, truth[-1][0].bfloat16())


def test_last_gives_the_logits(tiny_target: Target) -> None:
    model = load_model(tiny_target).double()
    with torch.no_grad():
        logits = model(torch.tensor([BATCH[0]])).logits[0]
        (states,) = capture(model, [BATCH[0]], LAYERS)
        again = model.lm_head(states.last.double())
    torch.testing.assert_close(again, logits, rtol=0.05, atol=0.1)


def test_no_logits_and_no_hooks_are_left(
    tiny_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(tiny_target)

    def refuse(*_: object) -> None:
        raise AssertionError("logits were computed")

    monkeypatch.setattr(model.lm_head, "forward", refuse)
    capture(model, BATCH, LAYERS)
    assert not any(module._forward_hooks for module in model.modules())


def test_what_it_returns_holds_no_padding(tiny_target: Target) -> None:
    for states in capture(load_model(tiny_target), BATCH, LAYERS):
        for tensor in (states.aux, states.last):
            assert tensor.untyped_storage().nbytes() == tensor.numel() * 2


def test_bad_requests(tiny_target: Target) -> None:
    model = load_model(tiny_target)
    assert capture(model, [], LAYERS) == []
    with pytest.raises(EngineError, match="without tokens"):
        capture(model, [[1], []], LAYERS)
    with pytest.raises(EngineError, match="no such layer"):
        capture(model, [[1]], Layers((2, 4, 8)))
