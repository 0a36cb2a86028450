"""A trained draft behind real servers: the bench, its figures, and the incident."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerie.bench.run import bench
from aerie.config import BenchSettings
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.probe import Probe
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import GateError
from aerie.gates.serving import check_serving
from aerie.target import read_target
from tests.engine.conftest import Raised

SETTINGS = BenchSettings(
    suites={"tiny": "-"}, k=3, max_new_tokens=30, repeats=2, timed_prompts=4, concurrency=(1, 4),
    min_accept_length=1.05, simulated_tolerance=0.05,
)  # fmt: skip


# A model of 135 million parameters is slow on the kernels of the stand-in. Of so few tokens the
# last chain is a good part, and SGLang counts what it verified beyond an answer's end.
FEW = {"max_new_tokens": 16, "repeats": 1, "timed_prompts": 2, "simulated_tolerance": 0.2}


def _measure(raised: Raised, engine: str, out: Path, settings: BenchSettings) -> dict[str, Any]:
    bench(settings, "main", "tiny", raised.suite, raised.draft, raised.target, 1, out, engine)
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize(
    ("which", "less", "apart"), [("raised_yarn", {}, 0.05), ("raised_smollm", FEW, 0.2)]
)
def test_served_figures_are_the_embedded_engines(
    which: str, less: dict[str, Any], apart: float, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    raised, settings = request.getfixturevalue(which), SETTINGS.model_copy(update=less)
    embedded = _measure(raised, "transformers", tmp_path / "embedded.json", settings)
    served = _measure(raised, "sglang", tmp_path / "served.json", settings)
    assert served["engine"] == "sglang" and served["versions"]["sglang"] == "0.5.23"
    # Plain greedy decoding and speculation say the same in float32, in both engines.
    assert served["equal_outputs"]["rate"] == embedded["equal_outputs"]["rate"] == 1
    assert [each["output_tokens"] for each in served["requests"]] == [
        each["output_tokens"] for each in embedded["requests"]
    ]
    assert served["accept_length"] > 1.2
    assert served["parity"]["rows"] >= 32 and served["parity"]["apart"] < 1e-3
    assert served["accept_length"] == pytest.approx(embedded["accept_length"], abs=apart)
    assert served["simulated_accept_length"] == pytest.approx(
        embedded["simulated_accept_length"], abs=0.01
    )
    rows = {(row["k"], row["concurrency"]): row for row in served["grid"]}
    assert set(rows) == {(3, 1), (3, 4)}
    for row in rows.values():
        assert row["plain"]["tokens_per_s"] > 0 and row["draft"]["tokens_per_s"] > 0
        assert row["plain"]["latency_s"]["p50"] <= row["plain"]["latency_s"]["p99"]
        assert row["round_cost"] == pytest.approx(row["accept_length"] / row["speedup"], rel=1e-3)
    # What both servers were told is on record, and is the same but for the draft.
    plain, draft = served["servers"]["plain"], served["servers"]["draft"]
    different = {name for name in plain.keys() | draft.keys() if plain.get(name) != draft.get(name)}
    assert draft["speculative_algorithm"] == "EAGLE3"
    assert plain["max_running_requests"] == draft["max_running_requests"] == 8
    assert {name for name in different if not name.startswith("speculative")} <= {
        "disable_chunked_prefix_cache",
        "hicache_host_memory_mode",
        "cuda_graph_config",
        "pp_max_micro_batch_size",
    }


def test_a_server_under_eagle_is_refused_before_anything_is_measured(
    raised: Raised, settings: SglangSettings, tmp_path: Path
) -> None:
    """The incident: with this flag SGLang starts, answers, and accepts nothing, without a word."""
    target, probe = read_target(raised.target), Probe(tmp_path / "probe")
    wanted = Wanted.with_draft(target, raised.draft.parent, 3, probe)
    eagle = settings.model_copy(update={"draft_arguments": ("--speculative-algorithm", "EAGLE")})
    with (
        pytest.raises(GateError, match=r"saw: +speculative_algorithm EAGLE") as caught,
        servers(eagle, wanted, tmp_path / "server.log"),
    ):
        pytest.fail("the server was handed out")
    assert caught.value.gate == "serving"
    # The second line of defence: its warm-up request never reached `fc`.
    with pytest.raises(GateError, match="not fed the target's aux states"):
        check_serving(probe.states_width, 3 * target.hidden_size)
    assert "Prefill batch" in (tmp_path / "server.log").read_text()
