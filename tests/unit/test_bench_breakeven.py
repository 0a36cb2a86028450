"""Break-even: against a brute-force simulation of rounds, and the edges of what is known."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.advise import advise, choose
from aerie.bench.breakeven import (
    Cell,
    Costs,
    accept_lengths,
    best,
    ceiling,
    costs_of,
    lengths_of,
    loses_from,
    measured_chains,
    pay_back,
    read_costs,
    surface,
)
from aerie.bench.commands import add_commands
from aerie.config import ROOT
from aerie.contracts.draft import ARCHITECTURE
from aerie.engines.sglang.settings import SglangSettings
from aerie.errors import DataError
from aerie.target import Target


def cells(slope: dict[int, float], longest: int = 6) -> list[Cell]:
    return [Cell(k, b, 1 + c * k, "test") for b, c in slope.items() for k in range(1, longest + 1)]


def simulate(share: float, k: int, cost: float, rounds: int, seed: int) -> float:
    """Tokens a plain step's time, played out round by round."""
    right = np.random.default_rng(seed).random((rounds, k)) < share
    return (rounds + int(right.cumprod(1).sum())) / (rounds * cost)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.85])
def test_the_surface_is_what_rounds_played_out_give(share: float) -> None:
    costs = Costs(tuple(cells({1: 0.1, 8: 0.3, 64: 0.9})))
    lengths = accept_lengths([share**i for i in range(1, 7)])
    choices = surface(lengths, costs)
    assert len(choices) == 18
    played = {
        (c.concurrency, c.k): simulate(share, c.k, c.round_cost, 30_000, c.k) for c in choices
    }
    for choice in choices:
        speed = played[choice.concurrency, choice.k]
        assert choice.speedup == pytest.approx(speed, rel=0.03)
        # Both agree on which side of the break-even it lies, where that can be seen.
        if abs(speed - 1) > 0.03:
            assert (choice.accept_length > choice.round_cost) == (speed > 1)
    for b in costs.concurrencies:
        chosen = best(lengths, costs, b)
        rivals = {k: s for (at, k), s in played.items() if at == b} | {0: 1.0}
        assert rivals[chosen.k] >= max(rivals.values()) - 0.05


def test_the_region_where_speculation_loses() -> None:
    lengths = accept_lengths([0.4, 0.15, 0.05])
    costs = Costs(tuple(cells({1: 0.1, 8: 0.3, 32: 0.5, 64: 0.9}, 3)))
    assert loses_from(surface(lengths, costs)) == 32
    assert best(lengths, costs, 64).k == 0
    assert loses_from(surface(lengths, Costs(tuple(cells({1: 0.1}, 3))))) is None


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 1), st.integers(1, 7), st.floats(1, 64))
def test_a_line_is_found_again_between_its_ends(slope: float, k: int, concurrency: float) -> None:
    ends = [(n, b) for n in (1, 7) for b in (1, 64)]
    costs = Costs(tuple(Cell(n, b, 1 + n * slope, "test") for n, b in ends))
    assert costs.at(k, int(concurrency)) == pytest.approx(1 + k * slope)


def test_nothing_is_said_beyond_what_was_measured() -> None:
    costs = Costs((Cell(3, 4, 1.5, "a"), Cell(3, 16, 2.0, "b")))
    assert costs.at(3, 8) == pytest.approx(1.75)
    # Nor below: a line to R = 1 at k = 0 once said that k = 1 pays, and R(1, b) that it does not.
    for k, concurrency in ((4, 8), (2, 8), (3, 2), (3, 32)):
        assert costs.at(k, concurrency) is None
    with pytest.raises(DataError, match="concurrency 32"):
        best({3: 2.0}, costs, 32)


def bench(**changes: Any) -> dict[str, Any]:
    positions = [{"joint": 0.5}, {"joint": 0.25}, {"joint": None}]
    return {"k": 3, "round_cost": 1.3, "positions": positions, "engine": "sglang",
            "domains": {"code": {"joint": [0.7, 0.5, 0.4]}}} | changes  # fmt: skip


def test_a_grid_goes_before_the_estimate() -> None:
    grid = [
        {"k": 1, "concurrency": 8, "accept_length": 1.47, "round_cost": 1.2},
        {"k": 1, "concurrency": 1, "accept_length": 1.46, "round_cost": 1.1},
    ]
    assert lengths_of(bench()) == {1: 1.5, 2: 1.75}
    assert lengths_of(bench(grid=grid)) == {1: 1.46, 2: 1.75}
    assert costs_of({"x": bench(grid=grid)}).concurrencies == [1, 8]
    assert costs_of({"x": bench()}).at(3, 1) == 1.3


def test_tables_of_round_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"cells": [{"k": 3, "concurrency": 8, "round_cost": 2.1}]}))
    assert read_costs(path) == [Cell(3, 8, 2.1, "costs.json")]
    path.write_text(json.dumps({"cells": [{"k": 3}]}))
    with pytest.raises(DataError, match="no table of round costs"):
        read_costs(path)
    with pytest.raises(DataError, match="no round costs that"):
        Costs((Cell(3, 1, -1.0, "x"),))


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(1, 7))
def test_the_ceiling_lies_between_one_and_k_plus_one(coverage: float, k: int) -> None:
    assert 1 <= ceiling(coverage, k) <= k + 1
    assert ceiling(1, k) == k + 1


def test_pay_back() -> None:
    # 1,500 GPU-hours at 1.3 times the speed: an hour of serving saves 0.23 of it.
    assert pay_back(1500, 1.3) == pytest.approx(6500)
    assert pay_back(1500, 0.9) is None
    assert pay_back(1500, 1.0) is None


def target(folder: Path) -> Target:
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return Target(folder, "t", "r", "bfloat16", 4, 8, 64, 128, (1,), (), None)


def test_advice_is_a_command_that_serves_the_choice(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    (draft / "config.json").write_text(json.dumps({"architectures": [ARCHITECTURE], **layers}))
    costs = [Cell(3, 16, 1.6, "table"), Cell(3, 64, 5.0, "table")]
    chosen = choose({"main": bench()}, 16, "code", costs)
    assert chosen.k == 3
    found = advise(chosen, "sglang", target(tmp_path), draft, SglangSettings(tp=8), "0.5.23")
    assert f"--speculative-num-steps {chosen.k}" in found.command
    assert "--speculative-algorithm EAGLE3" in found.command
    assert "--tp-size 8" in found.command
    assert "--max-running-requests 16" in found.command
    costs = [Cell(1, 64, 5.0, "table")]
    plain = choose({"main": bench(round_cost=None)}, 64, None, costs)
    found = advise(plain, "transformers", target(tmp_path), draft, SglangSettings(), "0.5.23")
    assert "speculative" not in found.command
    assert "serve without the draft" in found.words
    assert "on SGLang it is another one" in found.words


def test_an_unknown_domain_is_named() -> None:
    with pytest.raises(DataError, match="no domain poetry"):
        choose({"main": bench()}, 1, "poetry")


def test_a_concurrency_below_one_is_refused() -> None:
    with pytest.raises(DataError, match="--concurrency must be 1 or more"):
        choose({"main": bench()}, 0)


def test_which_accept_lengths_were_measured() -> None:
    assert measured_chains(bench()) == {3}
    assert measured_chains(bench(grid=[{"k": 1}, {"k": 5}])) == {1, 3, 5}


def test_advice_names_the_runs_that_there_are() -> None:
    options = argparse.ArgumentParser()
    add_commands(options.add_subparsers())
    demo = str(ROOT / "demo/config.yaml")
    given_ = options.parse_args(["advise", "--concurrency", "1", "--config", demo, "--run", "nope"])
    with pytest.raises(DataError, match=r"no run is called nope[\s\S]*one of main"):
        given_.main(given_)
