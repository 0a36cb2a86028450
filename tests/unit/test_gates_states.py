"""The gates before and after states, each with the fault that it is for."""

from pathlib import Path

import pytest
import torch

from aerie.contracts.layers import Layers
from aerie.contracts.states import token_bytes
from aerie.engines.base import Captured
from aerie.errors import GateError
from aerie.gates.disk import check_disk
from aerie.gates.states import check_batch, check_probe, probe_share

LAYERS = Layers((2, 4, 7))
HIDDEN = 8
BATCH = [[1, 2, 3, 4], [5, 6]]


def states(rows: int, aux: int = 3 * HIDDEN, last: int = HIDDEN) -> Captured:
    return Captured(torch.ones(rows, aux).bfloat16(), torch.ones(rows, last).bfloat16())


def check(*captured: Captured) -> None:
    check_batch(captured, BATCH, LAYERS, HIDDEN)


def test_whole_states_pass() -> None:
    check(states(4), states(2))


def test_lost_sequence() -> None:
    with pytest.raises(GateError, match="lost sequences"):
        check(states(4))


@pytest.mark.parametrize("rows", [1, 3])
def test_lost_or_extra_rows(rows: int) -> None:
    with pytest.raises(GateError, match="rows of aux and last"):
        check(states(4), states(rows))


def test_final_state_only_names_the_flag() -> None:
    with pytest.raises(GateError) as error:
        check(states(4, aux=HIDDEN), states(2, aux=HIDDEN))
    assert error.value.gate == "states"
    assert "`--speculative-algorithm EAGLE`" in str(error.value)
    assert "EAGLE3" in str(error.value)
    assert "fc is skipped" in str(error.value)


def test_another_wrong_width_names_the_layers() -> None:
    with pytest.raises(GateError) as error:
        check(states(4, aux=2 * HIDDEN), states(2))
    assert "[2, 4, 7]" in str(error.value)
    assert "EAGLE" not in str(error.value)


def test_wrong_final_width() -> None:
    with pytest.raises(GateError, match="not one final state"):
        check(states(4, last=2 * HIDDEN), states(2))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_names_the_layer(value: float) -> None:
    bad = states(4)
    bad.aux[2, HIDDEN] = value
    with pytest.raises(GateError, match="layer 4 is not finite") as error:
        check(bad, states(2))
    assert error.value.saw == "1 of 4 rows, the first at 2"


def test_rows_of_zeros_name_the_layer() -> None:
    bad = states(4)
    bad.last[3] = 0
    with pytest.raises(GateError, match="final state has rows of zeros"):
        check(bad, states(2))
    bad = states(4)
    bad.aux[1, 2 * HIDDEN :] = 0
    with pytest.raises(GateError, match="layer 7 has rows of zeros"):
        check(bad, states(2))


def test_probe_equals_the_plain_argmax() -> None:
    torch.manual_seed(0)
    head, last = torch.randn(40_000, HIDDEN), torch.randn(64, HIDDEN)
    best = (last.bfloat16().float() @ head.T).argmax(-1)
    assert probe_share(head, last.bfloat16(), best) == 1.0
    assert check_probe(head, last.bfloat16(), best, "here") == 1.0


def test_probe_finds_rows_shifted_by_one() -> None:
    torch.manual_seed(0)
    head, last = torch.randn(500, HIDDEN), torch.randn(64, HIDDEN)
    best = (last @ head.T).argmax(-1)
    with pytest.raises(GateError, match="here: argmax"):
        check_probe(head, last.roll(1, 0), best, "here")


def test_a_short_probe_is_forgiven_what_chance_explains() -> None:
    head = torch.eye(HIDDEN)
    last = torch.eye(HIDDEN)[[0, 1, 2, 3, 4]]
    assert check_probe(head, last, torch.tensor([0, 1, 2, 3, 5]), "here") == pytest.approx(0.8)
    with pytest.raises(GateError, match=r"20\.0% of 5 tokens"):
        check_probe(head, last, torch.tensor([0, 2, 3, 4, 5]), "here")
    many = last.repeat(200, 1)
    with pytest.raises(GateError, match=r"80\.0% of 1000 tokens"):
        check_probe(head, many, torch.tensor([0, 1, 2, 3, 5]).repeat(200), "here")


def test_disk_passes_to_the_byte() -> None:
    needed = 1000 * token_bytes(3 * HIDDEN, HIDDEN)
    check_disk(Path("/"), 1000, 3, HIDDEN, free=needed)
    with pytest.raises(GateError) as error:
        check_disk(Path("/"), 1000, 3, HIDDEN, free=needed - 1)
    for option in ("fewer tokens: 999 fit", "larger disk", "fp8", "rolling"):
        assert option in str(error.value)


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    check_disk(tmp_path / "a" / "b", 1, 3, HIDDEN)
    with pytest.raises(GateError, match="free"):
        check_disk(tmp_path / "a" / "b", 10**15, 3, HIDDEN)
