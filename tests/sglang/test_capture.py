"""Capture through real servers: the states of the transformers engine, whatever the batches are."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from aerie.contracts.layers import choose_layers
from aerie.contracts.responses import Response, read_responses, write_responses
from aerie.contracts.sidecar import write_sidecar
from aerie.contracts.states import Sample, StatesFile, token_bytes
from aerie.contracts.states_index import damage
from aerie.engines.base import Request
from aerie.engines.sglang.capture import new_spool
from aerie.engines.sglang.fleet import servers
from aerie.engines.sglang.server import Server
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.stream import ask
from aerie.engines.sglang.wanted import Wanted
from aerie.engines.transformers.load import TransformersEngine
from aerie.errors import EngineError
from aerie.files import read_json
from aerie.states.run import capture_part
from aerie.states.settings import StatesSettings
from aerie.target import Target, read_target
from tests.engine.conftest import Raised

TOKENS_PER_FILE = 1500
# A chunk holds several sequences and cuts most; decoding requests share it.
CHUNK = 64


@pytest.fixture
def chunked(
    settings: SglangSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SglangSettings:
    """Servers that prefill in small chunks, mixed with decoding, and jobs that know it."""
    mixed = (*settings.arguments, "--enable-mixed-chunk")
    chunked = settings.model_copy(
        update={
            "chunked_prefill": CHUNK,
            "arguments": mixed,
            "spool": str(tmp_path / "spool"),
            # Few enough that the server is not done before the first file is.
            "capture_tokens": 1000,
        }
    )
    monkeypatch.setenv("AERIE_SGLANG", chunked.as_json())
    return chunked


def responses(target: Target, count: int) -> list[Response]:
    """Rows of many lengths, the longest as long as the target's context."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 300, (count,), generator=generator).tolist()
    lengths[count // 2] = target.max_position
    rows = []
    for number, length in enumerate(lengths):
        ids = torch.randint(3, 500, (length,), generator=generator).tolist()
        cut = length // 2
        rows.append(Response(f"p{number}", "d", 0, "instant", ids[:cut], ids[cut:], "stop", "", ""))
    return rows


def capture(work: Path, target: Target, rows: list[Response], engine: str) -> Path:
    table = work / "responses" / "d" / "000.parquet"
    write_responses(table, rows)
    sidecar = table.with_suffix(".json")
    write_sidecar(sidecar, "responses", [table], {}, {})
    each = token_bytes(3 * target.hidden_size, target.hidden_size)
    settings = StatesSettings(batch_tokens=512).model_copy(
        update={"file_bytes": TOKENS_PER_FILE * each}
    )
    out = work / "states" / "d" / "000" / "index.json"
    capture_part(sidecar, target.folder / "target.json", settings, engine, out, greedy=False)
    return out


def samples(index: Path) -> Iterator[Sample]:
    for name in read_json(index)["files"]:
        yield from StatesFile(index.parent / name)


def check_equal(index: Path, reference: Path) -> None:
    """The same part as `reference`: all but the last bits of the states."""
    found, expected = read_json(index), read_json(reference)
    assert damage(index) == []
    for part in ("counts", "layers", "provenance"):
        assert found[part] == expected[part]
    for name, entry in expected["files"].items():
        assert found["files"][name]["samples"] == entry["samples"]
        assert found["files"][name]["key"] == entry["key"]
    exact = total = 0
    for one, other in zip(samples(index), samples(reference), strict=True):
        assert torch.equal(one.token_ids, other.token_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)
        for name in ("aux", "last"):
            saw, wanted = getattr(one, name), getattr(other, name)
            # Both computed in float32: nothing is left but how each rounds to bfloat16.
            torch.testing.assert_close(saw, wanted, rtol=2**-7, atol=1e-3)
            exact, total = exact + int((saw == wanted).sum()), total + saw.numel()
    assert exact / total > 0.99


def test_a_job_with_a_server_of_its_own(
    tmp_path: Path, tiny_target: Target, chunked: SglangSettings
) -> None:
    """Chunked prefill; a server that dies; a second run that goes on; nothing left behind."""
    rows = responses(tiny_target, 40)
    reference = capture(tmp_path / "transformers", tiny_target, rows, "transformers")
    work = tmp_path / "sglang"
    first = work / "states" / "d" / "000" / "00000.safetensors"

    def kill_the_scheduler() -> None:
        while not first.exists():
            time.sleep(0.01)
        children = psutil.Process().children(recursive=True)
        next(each for each in children if "scheduler" in " ".join(each.cmdline())).kill()

    killer = threading.Thread(target=kill_the_scheduler, daemon=True)
    killer.start()
    with pytest.raises(EngineError, match=r"server.*(died|failed)"):
        capture(work, tiny_target, rows, "sglang")
    killer.join(10)
    assert not first.with_name("index.json").exists()
    written = first.stat().st_mtime_ns

    index = capture(work, tiny_target, rows, "sglang")
    assert first.stat().st_mtime_ns == written
    check_equal(index, reference)
    assert list((tmp_path / "spool").iterdir()) == []
    names = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [name for name in names if "sglang" in name]


def test_a_given_server_of_the_family_of_kimi(
    tmp_path: Path,
    tiny_deepseek: Target,
    chunked: SglangSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLA and experts, in batches that are mixed with the decoding of others."""
    rows = responses(tiny_deepseek, 24)
    reference = capture(tmp_path / "transformers", tiny_deepseek, rows, "transformers")
    spool = new_spool(tiny_deepseek, choose_layers(tiny_deepseek.layers), chunked)
    log = tmp_path / "server.log"
    with servers(chunked, Wanted.capture(tiny_deepseek, spool), log) as fleet:
        monkeypatch.setenv(URLS, ",".join(fleet.urls))
        for name, value in spool.variables().items():
            monkeypatch.setenv(name, value)
        others = [Request([5 + n, 6, 7], 300, 0.0, 1.0, n) for n in range(4)]
        decoding = threading.Thread(target=ask, args=(others, fleet.endpoints, chunked))
        decoding.start()
        index = capture(tmp_path / "sglang", tiny_deepseek, rows, "sglang")
        decoding.join()
        check_equal(index, reference)
        assert [marker["sglang"] for marker in spool.markers()] == [fleet.infos[0]["version"]]
        # Left to its owner, which may have more parts to come.
        assert spool.folder.exists()
        # It answers as the embedded engine does, too.
        asked = [Request([5 + n, 6, 7], 24, 0.0, 1.0, n) for n in range(4)]
        found = ask(asked, fleet.endpoints, chunked, tiny_deepseek.end_token_ids)
        expected = TransformersEngine(tiny_deepseek, 1).generate(asked)
        assert [each.output_ids for each in found] == [each.output_ids for each in expected]
        mixed = [line for line in log.read_text().splitlines() if "Prefill batch" in line]
        assert any("#running-req: 4" in line for line in mixed)
    spool.remove()


def test_states_of_a_real_model(
    tmp_path: Path, raised_smollm: Raised, chunked: SglangSettings
) -> None:
    """SmolLM2-135M, its own answers to real questions."""
    target = read_target(raised_smollm.target)
    rows = read_responses(raised_smollm.folder / "responses/tiny/000.parquet")
    reference = capture(tmp_path / "transformers", target, rows, "transformers")
    check_equal(capture(tmp_path / "sglang", target, rows, "sglang"), reference)


def test_a_server_that_would_lose_rows_ends(
    tmp_path: Path, tiny_target: Target, settings: SglangSettings
) -> None:
    """A server with a prefix cache, which someone wants to capture with."""
    spool = new_spool(tiny_target, choose_layers(tiny_target.layers), settings)
    path = os.pathsep.join([*spool.paths(), settings.environment["PYTHONPATH"]])
    environment = {**settings.environment, **spool.variables(), "PYTHONPATH": path}
    wrong = settings.model_copy(update={"environment": environment})
    server = Server(wrong, Wanted.plain(tiny_target), tmp_path / "server.log")
    try:
        with pytest.raises(EngineError, match="--disable-radix-cache is missing"):
            server.start()
        assert "--disable-radix-cache is missing" in spool.failures()[0]
        assert spool.markers() == []
    finally:
        server.stop()
        spool.remove()
