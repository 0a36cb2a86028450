"""Capture through SGLang: whatever the batches are, each sequence gets its own rows or none."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.config import ROOT
from aerie.engines.base import Captured
from aerie.engines.sglang import capture
from aerie.engines.sglang.capture import SglangCapture
from aerie.engines.sglang.plugin import CapturePlugin, _check_layers, _refuse
from aerie.engines.sglang.plugin_writer import RowWriter, Segment
from aerie.engines.sglang.spool import Inbox, RequestName, Rows, Spool
from aerie.errors import EngineError
from tests.unit.capture_double import HIDDEN, LAYERS, CaptureDouble, Open, served, states_of

SEQUENCES = [[(7 * row + at) % 250 for at in range(1 + (13 * row) % 40)] for row in range(30)]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool.create(tmp_path, LAYERS, HIDDEN)
    made.announce({"sglang": "double"})
    return made


def check_equal(got: Sequence[Captured], sequences: Sequence[Sequence[int]]) -> None:
    for states, ids in zip(got, sequences, strict=True):
        expected = states_of(ids)
        assert torch.equal(states.aux, expected.aux)
        assert torch.equal(states.last, expected.last)


def capture_all(double: CaptureDouble, spool: Spool, sequences: Sequence[list[int]]) -> None:
    with served(double) as url:
        check_equal(list(SglangCapture([url], spool, 64, 10.0).states(sequences)), sequences)


@settings(max_examples=20, deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(0, 250), min_size=1, max_size=60), max_size=12),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_each_sequence_has_its_own_rows(sequences: list[list[int]], chunks: list[int]) -> None:
    """Chunks split sequences anywhere, and mix them with others."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool.create(Path(folder), LAYERS, HIDDEN)
        spool.announce({})
        capture_all(CaptureDouble(spool, itertools.cycle(chunks)), spool, sequences)


def test_blocks_split_chunks(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerie.engines.sglang.plugin_writer._BLOCK_BYTES", 5 * spool.row_bytes)
    capture_all(CaptureDouble(spool, itertools.repeat(37)), spool, SEQUENCES)


def test_no_more_is_sent_ahead_than_agreed(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_LEAST_GROUPS", 6)
    double = CaptureDouble(spool, itertools.repeat(50))
    with served(double) as url:
        for _ in SglangCapture([url], spool, 100, 10.0).states(SEQUENCES):
            time.sleep(0.002)
            waiting = [path for path in spool.folder.rglob("*") if path.name.isdigit()]
            assert sum(path.stat().st_size for path in waiting) <= 100 * spool.row_bytes
    assert max(map(len, SEQUENCES)) < double.most_tokens <= 100


def test_nothing_is_left_in_the_spool(spool: Spool) -> None:
    before = set(spool.folder.iterdir())
    capture_all(CaptureDouble(spool, itertools.repeat(37)), spool, SEQUENCES)
    assert set(spool.folder.iterdir()) == before
    with served(CaptureDouble(spool, itertools.repeat(5))) as url:
        stopped = SglangCapture([url], spool, 64, 10.0).states(SEQUENCES)
        next(stopped)
        stopped.close()
    assert set(spool.folder.iterdir()) == before


def test_what_a_killed_job_left_goes_and_what_a_live_one_has_stays(spool: Spool) -> None:
    code = (
        "import os, sys; from pathlib import Path; from aerie.engines.sglang.spool import *\n"
        f"Spool.create(Path({str(spool.folder.parent)!r}), (2,), 4)\n"
        f"with Inbox(Spool(Path({str(spool.folder)!r}), {LAYERS}, {HIDDEN})): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    (abandoned,) = spool.folder.glob("job-*")
    assert len(list(spool.folder.parent.glob("aerie-spool-*"))) == 2
    with Inbox(spool):
        (live,) = spool.folder.glob("job-*")
        assert live != abandoned
        with Inbox(spool):
            assert live in set(spool.folder.glob("job-*"))
    other = Spool.create(spool.folder.parent, (2,), 4)
    assert set(spool.folder.parent.glob("aerie-spool-*")) == {spool.folder, other.folder}
    other.remove()


def test_names_are_read_back() -> None:
    name = RequestName("job-x_1", 12, 345)
    assert RequestName.parse(str(name)) == name
    for other in ("HEALTH_CHECK_1", "aerie.../../etc.1.2", "aerie.job.1", "aerie.job.1.2.3", ""):
        assert RequestName.parse(other) is None


# What goes wrong must stop the job.


def states(double: CaptureDouble, spool: Spool) -> None:
    with served(double) as url:
        list(SglangCapture([url], spool, 64, 10.0).states(SEQUENCES))


@pytest.fixture
def double(spool: Spool) -> CaptureDouble:
    return CaptureDouble(spool, itertools.repeat(37))


def test_a_server_without_the_plugin(tmp_path: Path, double: CaptureDouble) -> None:
    with pytest.raises(EngineError, match="has Aerie's plugin"):
        states(double, Spool.create(tmp_path, LAYERS, HIDDEN))


def test_a_server_that_captures_other_layers(spool: Spool, double: CaptureDouble) -> None:
    with pytest.raises(EngineError, match="something else than this job wants"):
        states(double, Spool(spool.folder, (2, 4, 6), HIDDEN))


def test_a_plugin_that_is_not_called(
    spool: Spool, double: CaptureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(double.plugin, "take", lambda *_: None)
    with pytest.raises(EngineError, match=r"(?s)its states did not come.*CUDA graphs"):
        states(double, spool)


def meta_with(double: CaptureDouble, **changes: Any) -> Any:
    def reply(body: dict[str, Any]) -> tuple[int, Any]:
        status, answers = double.prefill(body)
        return status, [answer | {"meta_info": answer["meta_info"] | changes} for answer in answers]

    return reply


@pytest.mark.parametrize(
    "changes",
    [
        {"cached_tokens": 1},
        {"prompt_tokens": 2},
        {"id": "another"},
        {"finish_reason": {"type": "abort", "message": "out of memory"}},
    ],
)
def test_an_answer_to_something_else(
    spool: Spool, double: CaptureDouble, changes: dict[str, Any]
) -> None:
    double.reply = meta_with(double, **changes)
    with pytest.raises(EngineError, match="not an answer to these requests"):
        states(double, spool)


def test_a_refused_request(spool: Spool, double: CaptureDouble) -> None:
    double.reply = lambda body: (400, {"error": {"message": "longer than the context"}})
    with pytest.raises(EngineError, match=r"HTTP 400.*longer than the context"):
        states(double, spool)


def test_a_server_that_is_gone(spool: Spool, double: CaptureDouble) -> None:
    with served(double) as url:
        pass
    with pytest.raises(EngineError, match=f"server at {url} failed"):
        list(SglangCapture([url], spool, 64, 10.0).states(SEQUENCES))


def test_the_servers_own_word_is_passed_on(spool: Spool, double: CaptureDouble) -> None:
    spool.report_failure("OSError: no space left on the spool")
    double.reply = lambda body: (500, {})
    with pytest.raises(EngineError, match="no space left on the spool"):
        states(double, spool)


def test_states_of_other_tokens(spool: Spool, double: CaptureDouble) -> None:
    def swapped(body: dict[str, Any]) -> tuple[int, Any]:
        wrong = [[ids[0] ^ 1, *ids[1:]] for ids in body["input_ids"]]
        return double.prefill(body | {"input_ids": wrong})

    double.reply = swapped
    with pytest.raises(EngineError, match="those of other tokens"):
        states(double, spool)


# The plugin, in the server.


@pytest.fixture
def inbox(spool: Spool) -> Iterator[Inbox]:
    with Inbox(spool) as opened:
        yield opened


def test_rows_that_are_missing_end_the_server(
    spool: Spool, double: CaptureDouble, inbox: Inbox
) -> None:
    """What a prefix cache does: the forward pass begins in the middle."""
    asked = Open(str(inbox.name(8)), list(range(8)))
    with pytest.raises(EngineError, match=r"(?s)rows 3 to 8.*--disable-radix-cache"):
        double.forward([(asked, 3, 5)])
    assert "rows 3 to 8" in spool.failures()[0]


def test_too_many_rows_end_the_server(double: CaptureDouble, inbox: Inbox) -> None:
    asked = Open(str(RequestName(inbox.name(1).job, 1, 4)), list(range(8)))
    with pytest.raises(EngineError, match="4 in all"):
        double.forward([(asked, 0, 8)])


def test_other_widths_end_the_server(tmp_path: Path, spool: Spool, inbox: Inbox) -> None:
    """Two layers where three are wanted, and the final state alone."""
    two = CaptureDouble(Spool(spool.folder, (2, 4), HIDDEN), itertools.repeat(9))
    asked = Open(str(inbox.name(8)), list(range(8)))
    with pytest.raises(EngineError, match=r"(?s)other widths.*\(12, 4\).*\(8, 4\)"):
        two.forward([(asked, 0, 8)])


def test_a_target_that_gives_no_layers(spool: Spool, double: CaptureDouble, inbox: Inbox) -> None:
    metadata = SimpleNamespace(
        rids=[str(inbox.name(1))],
        input_ids=torch.tensor([1]),
        extend_prefix_lens_cpu=[0],
        extend_seq_lens_cpu=[1],
        forward_mode=SimpleNamespace(is_extend=lambda: True),
    )
    with pytest.raises(EngineError, match="no states of layers"):
        double.plugin.take(None, None, torch.zeros(1, HIDDEN), None, metadata)


def test_decoding_and_other_ranks_are_left_alone(spool: Spool, inbox: Inbox) -> None:
    name = str(inbox.name(1))
    decoding = SimpleNamespace(rids=[name], forward_mode=SimpleNamespace(is_extend=lambda: False))
    last = torch.zeros(1, HIDDEN)
    CapturePlugin(spool, RowWriter(spool, "cpu")).take(None, None, last, None, decoding)
    prefill = SimpleNamespace(rids=[name], forward_mode=SimpleNamespace(is_extend=lambda: True))
    CapturePlugin(spool).take(None, None, last, None, prefill)


def server(**changes: Any) -> Any:
    arguments = {"disable_radix_cache": True, "pp_size": 1, "enable_dp_attention": False}
    algorithm = changes.pop("algorithm", None)
    return SimpleNamespace(
        server_args=SimpleNamespace(**{**arguments, **changes}),
        is_draft_worker=False,
        spec_algorithm=SimpleNamespace(is_none=lambda: algorithm is None),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disable_radix_cache": False}, "--disable-radix-cache is missing"),
        ({"algorithm": "EAGLE3"}, "speculation is on"),
        ({"pp_size": 2}, "pipeline parallelism"),
        ({"enable_dp_attention": True}, "attention is data parallel"),
    ],
)
def test_servers_that_would_lose_rows_are_refused(changes: dict[str, Any], reason: str) -> None:
    _refuse(server())
    with pytest.raises(EngineError, match=reason):
        _refuse(server(**changes))


def test_layers_are_those_that_were_asked_for() -> None:
    class Model(torch.nn.Module):
        def __init__(self, layers: list[int] | None) -> None:
            super().__init__()
            self.model = torch.nn.Module()
            self.model.layers_to_capture = layers  # type: ignore[assignment]

    _check_layers(Model([2, 30, 58]), (2, 30, 58))
    for wrong in ([3, 31, 59], [1, 29, 57], None):
        with pytest.raises(EngineError, match="other layers than the draft"):
            _check_layers(Model(wrong), (2, 30, 58))


def test_rows_of_a_job_that_ended_are_dropped(spool: Spool, inbox: Inbox) -> None:
    writer = RowWriter(spool, "cpu")
    gone, there = RequestName("job-gone", 1, 2), inbox.name(2)
    given_states = states_of([5, 6])
    rows = Rows(torch.tensor([5, 6], dtype=torch.int32), given_states.aux, given_states.last)
    writer.put(rows, [Segment(gone, 0, 0, 2)])
    writer.put(rows, [Segment(there, 0, 0, 2)])
    taken = inbox.take(there, 5.0)
    assert taken is not None
    assert torch.equal(taken.aux, given_states.aux)
    assert spool.failures() == []


def test_a_spool_that_cannot_be_written_ends_the_server(spool: Spool, tmp_path: Path) -> None:
    (spool.folder / "job-file").write_text("no folder")
    code = f"""
import torch
from pathlib import Path
from aerie.engines.sglang.plugin_writer import RowWriter, Segment
from aerie.engines.sglang.spool import RequestName, Rows, Spool
import time
writer = RowWriter(Spool(Path({str(spool.folder)!r}), {LAYERS}, {HIDDEN}), "cpu")
ids, states = torch.zeros(1, dtype=torch.int32), torch.zeros(1, 16).bfloat16()
rows = Rows(ids, states[:, :12], states[:, 12:])
writer.put(rows, [Segment(RequestName("job-file", 1, 1), 0, 0, 1)])
time.sleep(60)
"""
    # The parent stands for SGLang's main process, which ends the server on this signal.
    parent = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGQUIT, lambda *_: print('asked to end', flush=True))\n"
        f"print(subprocess.run([sys.executable, '-c', {code!r}]).returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:2] == ["asked to end", "1"], done.stderr
    assert "NotADirectoryError" in spool.failures()[0]
    assert "NotADirectoryError" in done.stderr
    assert done.returncode != -signal.SIGQUIT


def test_the_plugin_is_found_by_its_entry_point(spool: Spool) -> None:
    """Without site-packages: nothing that a server's image may lack is needed to load it."""
    code = (
        "from importlib.metadata import entry_points\n"
        "found = {each.name: each for each in entry_points(group='sglang.srt.plugins')}\n"
        "import aerie.engines.sglang.spool as s\n"
        "print(found['aerie'].load().__module__, s.Spool.from_environment())"
    )
    paths = os.pathsep.join(spool.paths())
    environment = {**os.environ, **spool.variables(), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"aerie.engines.sglang.plugin {spool}"


def test_arguments_by_version(spool: Spool) -> None:
    old = spool.arguments("0.5.16")
    assert old == ["--disable-radix-cache", "--disable-cuda-graph"]
    new = spool.arguments("0.5.23.post1")
    assert new[-3:] == ["1", "3", "4"]
    assert set(old) < set(new)
    assert "--enable-return-aux-hidden-states" in new
