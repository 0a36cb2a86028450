"""Fetching from a Hub: the real client against a real server on loopback."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from aerie.config import ROOT, DatasetSettings
from aerie.errors import DataError
from aerie.files import digest_file, read_json, write_json
from aerie.hub import columns, fetch
from aerie.hub.client import Hub, RemoteFile
from aerie.hub.fetch import Wanted
from aerie.hub.retry import Retry, wait_asked
from aerie.lock import write_lock
from aerie.progress import Progress
from aerie.verify import repair, verify
from tests.loopback_hub import LoopbackHub
from tests.loopback_repository import Repository
from tests.unit.report_fixtures import write_build

REPO = "nebius/SWE-agent-trajectories"
PARQUET = "data/train-00000.parquet"
TEXT = "extra/rows.jsonl"
TOKEN = "hf_thisisthetokenofareader"
# Waits that tests can afford.
QUICK = Retry(tries=4, first=0.01, longest=0.02, jitter=0.01)
LINES = b"".join(
    b'{"messages": "%d %s"}\n' % (n, os.urandom(400).hex().encode()) for n in range(400)
)


def rows(count: int, word: str = "issue") -> pa.Table:
    """Trajectories with a column that is large and not wanted."""
    return pa.table(
        {
            "instance_id": [f"{word}-{n}" for n in range(count)],
            "trajectory": [[{"role": "user", "text": f"{word} {n}"}] * 2 for n in range(count)],
            "eval_logs": [os.urandom(1500).hex() for _ in range(count)],
        }
    )


def parquet(table: pa.Table, row_group_size: int = 50) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size)
    return sink.getvalue()


def wanted(**changes: Any) -> Wanted:
    fields: dict[str, Any] = {
        "repo": REPO,
        "revision": "main",
        "patterns": ("data/train-*.parquet", "extra/*.jsonl"),
        "columns": ("instance_id", "trajectory"),
    }
    return Wanted(**{**fields, **changes})


@pytest.fixture
def table() -> pa.Table:
    return rows(200)


@pytest.fixture
def repository(loopback: LoopbackHub, table: pa.Table) -> Repository:
    files = {PARQUET: parquet(table), TEXT: LINES, "README.md": b"# card", "data/x/y.parquet": b""}
    return loopback.add(REPO, files)


@pytest.fixture
def hub(loopback: LoopbackHub) -> Hub:
    return Hub(loopback.url, QUICK)


def content(folder: Path) -> dict[str, str]:
    files = folder / "files"
    return {
        path.relative_to(files).as_posix(): digest_file(path)
        for path in files.rglob("*")
        if path.is_file()
    }


def asked(loopback: LoopbackHub, name: str) -> list[tuple[int, int]]:
    """The ranges that were asked of a file."""
    ranges = [one.range for one in loopback.requests if one.path.endswith(name) and one.range]
    pairs = [text.removeprefix("bytes=").split("-") for text in ranges]
    return [(int(start), int(end) + 1) for start, end in pairs]


def test_a_revision_becomes_a_commit_and_files(
    repository: Repository, hub: Hub, tmp_path: Path, table: pa.Table, loopback: LoopbackHub
) -> None:
    sidecar = fetch.fetch(wanted(), tmp_path, hub)
    provenance = sidecar["provenance"]
    assert provenance["commit"] == repository.branches["main"]
    assert set(provenance["remote"]) == {PARQUET, TEXT}
    assert provenance["remote"][TEXT]["digest"] == hashlib.sha256(LINES).hexdigest()
    assert (tmp_path / "files" / TEXT).read_bytes() == LINES
    local = pq.read_table(tmp_path / "files" / PARQUET)
    assert local.equals(table.select(["instance_id", "trajectory"]))
    assert pq.ParquetFile(tmp_path / "files" / PARQUET).num_row_groups == 4
    schema = json.loads((ROOT / "schemas/sidecar.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(sidecar, schema)
    for text in (loopback.url, str(tmp_path)):
        assert text not in (tmp_path / "source.json").read_text(encoding="utf-8")
    assert not (tmp_path / ".partial").exists()
    assert verify(tmp_path).findings == []


def test_columns_that_nobody_reads_are_never_asked_for(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    fetch.fetch(wanted(patterns=("data/train-*.parquet",)), tmp_path, hub)
    remote = repository.commits[repository.branches["main"]][PARQUET]
    ranges = asked(loopback, PARQUET)
    # Arrow reads 64 KiB for a footer; the rest must be the columns alone.
    assert sum(end - start for start, end in ranges) < (64 << 10) + len(remote) * 0.1
    with pq.ParquetFile(io.BytesIO(remote)) as file:
        for group in range(file.num_row_groups):
            logs = file.metadata.row_group(group).column(3)
            assert logs.path_in_schema == "eval_logs"
            first = logs.dictionary_page_offset or logs.data_page_offset
            last = first + logs.total_compressed_size
            footers = [one for one in ranges if one[1] == len(remote)]
            assert not [s for s, e in ranges if s < last and e > first and (s, e) not in footers]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    count=st.integers(0, 60),
    group=st.integers(1, 25),
    piece=st.sampled_from([1, 2000, 1 << 20]),
    kept=st.lists(st.sampled_from(["a", "b.c", "d"]), min_size=1, unique=True),
)
def test_a_projection_is_the_table_without_the_other_columns(
    count: int, group: int, piece: int, kept: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the row groups and the pieces are."""
    folder = tmp_path_factory.mktemp("projection")
    full = pa.table(
        {
            "a": pa.array(range(count), pa.int64()),
            "b.c": pa.array([[{"x": str(n), "y": None}] * (n % 3) for n in range(count)],
                            pa.list_(pa.struct([("x", pa.string()), ("y", pa.float32())]))),
            "d": pa.array([None if n % 2 else "ü" * n for n in range(count)], pa.large_string()),
        }
    )  # fmt: skip
    source = io.BytesIO(parquet(full, group))
    plan = columns.plan(source, "it", tuple(kept), ("z",))
    with pytest.MonkeyPatch.context() as patch, Progress("copy", plan.bytes, "bytes") as progress:
        patch.setattr(columns, "_PIECE_BYTES", piece)
        columns.copy(source, "it", plan, folder / "pieces", folder / "out.parquet", progress)
    assert pq.read_table(folder / "out.parquet").equals(full.select(sorted(kept)))
    assert progress.done == plan.bytes


def test_a_second_run_asks_for_nothing(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    first = fetch.fetch(wanted(), tmp_path, hub)
    (tmp_path / "source.json").unlink()  # as Snakemake does before a job
    loopback.requests.clear()
    assert fetch.fetch(wanted(), tmp_path, hub) == first
    assert loopback.requests == []


def test_only_what_is_damaged_is_fetched_again(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    first = fetch.fetch(wanted(), tmp_path, hub)
    (tmp_path / "files" / TEXT).write_bytes(b"damaged")
    repair(verify(tmp_path).findings)
    assert not (tmp_path / "source.json").exists()
    loopback.requests.clear()
    assert fetch.fetch(wanted(), tmp_path, hub) == first
    assert asked(loopback, PARQUET) == []
    assert asked(loopback, TEXT) == [(0, len(LINES))]


def test_a_branch_that_moves_changes_nothing_until_it_is_asked(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    first = fetch.fetch(wanted(), tmp_path, hub)
    old = repository.commits[repository.branches["main"]]
    repository.commit({PARQUET: old[PARQUET], TEXT: LINES + b"{}\n"})
    assert fetch.fetch(wanted(), tmp_path, hub) == first
    (tmp_path / "pinned.json").unlink()
    loopback.requests.clear()
    moved = fetch.fetch(wanted(), tmp_path, hub)
    assert moved["provenance"]["commit"] == repository.branches["main"]
    assert (tmp_path / "files" / TEXT).read_bytes() == LINES + b"{}\n"
    assert asked(loopback, PARQUET) == []


def test_another_revision_replaces_the_files(
    repository: Repository, hub: Hub, tmp_path: Path
) -> None:
    fetch.fetch(wanted(), tmp_path, hub)
    commit = repository.commit({"extra/other.jsonl": b"{}\n"}, branch="v2")
    sidecar = fetch.fetch(wanted(revision=commit), tmp_path, hub)
    assert sidecar["provenance"]["commit"] == commit
    assert set(content(tmp_path)) == {"extra/other.jsonl"}


def test_the_order_of_columns_decides_nothing(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    first = fetch.fetch(wanted(), tmp_path, hub)
    loopback.requests.clear()
    again = wanted(columns=("trajectory",), optional=("instance_id",))
    assert fetch.fetch(again, tmp_path, hub) == first
    assert loopback.requests == []


def test_other_columns_make_parquet_anew_and_nothing_else(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    fetch.fetch(wanted(), tmp_path, hub)
    loopback.requests.clear()
    fetch.fetch(wanted(columns=("trajectory",), optional=("instance_id2",)), tmp_path, hub)
    assert pq.read_schema(tmp_path / "files" / PARQUET).names == ["trajectory"]
    assert asked(loopback, TEXT) == []


@pytest.mark.parametrize("match", ["/api/", "/resolve/", "/cdn/"])
@pytest.mark.parametrize("kind", ["429", "503", "drop", "cut"])
def test_what_passes_is_tried_again(
    kind: str, match: str, repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub
) -> None:
    if kind == "drop":
        fault = loopback.fault("drop", match=match, left=2)
    elif kind == "cut":
        fault = loopback.fault("cut", match=match, left=2)
    else:
        fault = loopback.fail(2, int(kind), match, retry_after="0")
    fetch.fetch(wanted(), tmp_path, hub)
    assert fault.left == 0
    assert (tmp_path / "files" / TEXT).read_bytes() == LINES


def test_tries_end(repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub) -> None:
    loopback.fail(100, 503, TEXT)
    with pytest.raises(DataError) as error:
        fetch.fetch(wanted(), tmp_path, hub)
    assert "HTTP 503, after 4 tries" in str(error.value)
    assert "run the same command again" in str(error.value)
    assert len([one for one in loopback.requests if one.path.endswith(TEXT)]) == 4
    # What arrived before is kept.
    loopback.faults.clear()
    loopback.requests.clear()
    fetch.fetch(wanted(), tmp_path, hub)
    assert asked(loopback, PARQUET) == []


def test_no_server_is_a_clear_error(tmp_path: Path, loopback: LoopbackHub) -> None:
    hub = Hub("http://user:secret@127.0.0.1:9", Retry(tries=2, first=0.01, jitter=0.01))
    with pytest.raises(DataError) as error:
        fetch.fetch(wanted(), tmp_path, hub)
    assert "did not answer" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": formatdate(4102444800, usegmt=True)}, None),
        ({"Retry-After": "soon"}, "own"),
        ({}, "own"),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": '"api";r=3;t=55', "Retry-After": "2"}, 2),
    ],
)
def test_a_server_says_how_long(headers: dict[str, str], seconds: Any) -> None:
    wait = wait_asked(httpx2.Headers(headers))
    if seconds is None:
        assert wait is not None and wait > 1e6
    else:
        assert wait == (None if seconds == "own" else seconds)


def test_retry_after_is_obeyed(
    repository: Repository, tmp_path: Path, loopback: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    loopback.fail(1, 429, "/api/", retry_after="37")
    loopback.fail(1, 429, "/api/", retry_after="99999")
    loopback.fail(2, 503, "/api/")
    Hub(loopback.url, Retry(first=1, jitter=2)).snapshot(REPO, "main")
    assert waits[:2] == [37, 600]
    assert 4 <= waits[2] <= 6 and 8 <= waits[3] <= 10


def test_a_gated_dataset_names_its_page(
    repository: Repository, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.gated, repository.readers = "auto", {TOKEN}
    for token in ("", "hf_someoneelse"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(DataError) as error:
            fetch.fetch(wanted(), tmp_path, hub)
        assert f"{hub.url}/datasets/{REPO}" in str(error.value)
        assert "HF_TOKEN" in str(error.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # The storage behind the Hub refuses requests that carry a token.
    fetch.fetch(wanted(), tmp_path, hub)
    assert (tmp_path / "files" / TEXT).read_bytes() == LINES


def test_a_token_is_never_printed(
    repository: Repository, tmp_path: Path, loopback: LoopbackHub
) -> None:
    repository.gated, repository.readers = "manual", {TOKEN}
    loopback.fail(1, 503, "/cdn/", retry_after="0")
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable, "scripts/source.py", "--log", str(out / "log"), "--repo", REPO,
            "--files", "data/*.parquet", "extra/*.jsonl", "--columns", "instance_id",
            "--out", str(out / "source.json"),
        ],
        cwd=ROOT, env=environment(loopback) | {"HF_TOKEN": TOKEN, "HF_HUB_VERBOSITY": "debug"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    texts = [done.stdout] + [
        path.read_text(encoding="utf-8") for path in (out / "log", *out.glob("*.json"))
    ]
    assert "HTTP 503" in done.stdout and repository.branches["main"] in done.stdout
    for secret in (TOKEN, "Signature"):
        assert not [text for text in texts if secret in text]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"repo": "nebius/nothing"}, ["no dataset nebius/nothing", "`repo`", "HF_TOKEN"]),
        ({"revision": "v9"}, ["no revision 'v9'", "`revision`"]),
        ({"patterns": ("*.csv",)}, ["no file", "README.md", "*.csv", "`files`"]),
        ({"columns": ("messages",)}, [PARQUET, "'messages' is missing", "trajectory", "revision"]),
    ],
)
def test_what_is_not_there_is_a_clear_error(
    changes: dict[str, Any], named: list[str], repository: Repository, hub: Hub, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        fetch.fetch(wanted(**changes), tmp_path, hub)
    for text in named:
        assert text in str(error.value)
    assert "remedy:" in str(error.value)


def test_a_pinned_commit_that_vanished_is_a_clear_error(
    repository: Repository, hub: Hub, tmp_path: Path
) -> None:
    fetch.fetch(wanted(), tmp_path, hub)
    gone = repository.branches["main"]
    repository.commit({TEXT: LINES})
    del repository.commits[gone]
    # All is here: nothing needs the Hub.
    assert fetch.fetch(wanted(), tmp_path, hub)["provenance"]["commit"] == gone
    (tmp_path / "files" / TEXT).unlink()
    with pytest.raises(DataError) as error:
        fetch.fetch(wanted(), tmp_path, hub)
    assert gone in str(error.value) and "`revision`" in str(error.value)


def test_a_file_outside_the_dataset_is_refused(hub: Hub, loopback: LoopbackHub) -> None:
    loopback.add(REPO, {"data/../../x.jsonl": b"{}"})
    with pytest.raises(DataError, match="outside itself"):
        hub.snapshot(REPO, "main")


@pytest.mark.parametrize("length", [0, 100, 4000])
def test_a_damaged_parquet_is_a_clear_error(
    length: int, repository: Repository, hub: Hub, tmp_path: Path
) -> None:
    repository.commit({PARQUET: parquet(rows(20))[:length]})
    with pytest.raises(DataError, match="not a whole Parquet file") as error:
        fetch.fetch(wanted(), tmp_path, hub)
    assert PARQUET in str(error.value)


def test_a_server_without_ranges_serves_too(
    repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub, table: pa.Table,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    loopback.ranges = False
    monkeypatch.setattr(fetch, "_BLOCK_BYTES", 100_000)
    fetch.fetch(wanted(), tmp_path, hub)
    assert (tmp_path / "files" / TEXT).read_bytes() == LINES
    local = pq.read_table(tmp_path / "files" / PARQUET)
    assert local.equals(table.select(["instance_id", "trajectory"]))


def test_content_is_no_artifact(hub: Hub, tmp_path: Path, loopback: LoopbackHub) -> None:
    """Whatever a JSON file of a dataset holds, only its digest counts. It is not under LFS."""
    content = {"a.json": b'{"artifact": "states"}', "b/c.json": b"[1, 2"}
    loopback.add(REPO, content)
    folder = tmp_path / "sources" / "mine"
    fetch.fetch(wanted(patterns=("**/*.json",)), folder, hub)
    assert verify(tmp_path).checked == {"source": 1}
    assert verify(tmp_path).findings == []
    (folder / "files/b/c.json").write_bytes(b"[1, 3")
    assert [finding.file for finding in verify(tmp_path).findings] == [folder / "files/b/c.json"]


def test_offline_uses_what_is_there(
    repository: Repository, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch.fetch(wanted(), tmp_path / "there", hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch.fetch(wanted(), tmp_path / "there", hub) == first
    (tmp_path / "there/files" / TEXT).unlink()
    for folder in ("there", "elsewhere"):
        with pytest.raises(DataError) as error:
            fetch.fetch(wanted(), tmp_path / folder, hub)
        assert REPO in str(error.value) and "HF_HUB_OFFLINE=0" in str(error.value)


def environment(loopback: LoopbackHub) -> dict[str, str]:
    return os.environ | {
        "HF_ENDPOINT": loopback.url,
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.parametrize("name", [PARQUET, TEXT])
def test_a_killed_download_continues(
    name: str, repository: Repository, hub: Hub, tmp_path: Path, loopback: LoopbackHub,
    table: pa.Table,
) -> None:  # fmt: skip
    """SIGKILL in the middle of a file: what had arrived of it is not asked for again."""
    code = (
        "from pathlib import Path; from aerie.hub import columns, fetch\n"
        "columns._PIECE_BYTES, fetch._BLOCK_BYTES = 1, 100_000\n"
        f"fetch.fetch(fetch.Wanted({REPO!r}, 'main', ({name!r},), ('instance_id', 'trajectory')),"
        f" Path({str(tmp_path)!r}))"
    )
    # The footer is the first request for a Parquet file.
    hold = loopback.fault("hold", match=f"/resolve/.*{name}", skip=3)
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment(loopback))
    try:
        assert hold.reached.wait(60)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        hold.release.set()
    before = asked(loopback, name)[:-1]
    assert not (tmp_path / "source.json").exists()
    loopback.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_PIECE_BYTES", 1)
        patch.setattr(fetch, "_BLOCK_BYTES", 100_000)
        fetch.fetch(wanted(patterns=(name,)), tmp_path, hub)
    after = asked(loopback, name)
    body = before if name == TEXT else before[1:]
    again = [(s, e) for s, e in after for start, end in body if s < end and e > start]
    if name == TEXT:
        assert again == []
        assert (tmp_path / "files" / name).read_bytes() == LINES
    else:
        footer = after[0]
        assert [one for one in again if one != footer] == []
        local = pq.read_table(tmp_path / "files" / name)
        assert local.equals(table.select(["instance_id", "trajectory"]))
    assert not (tmp_path / ".partial").exists()


def test_a_partial_file_that_is_wrong_is_started_over(
    repository: Repository, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_BLOCK_BYTES", 50_000)
    partial = tmp_path / ".partial" / hashlib.sha256(LINES).hexdigest()
    partial.parent.mkdir()
    for junk in (bytes(1000), bytes(len(LINES) + 1)):
        partial.write_bytes(junk)
        fetch.fetch(wanted(patterns=("extra/*",)), tmp_path, hub)
        assert (tmp_path / "files" / TEXT).read_bytes() == LINES
        (tmp_path / "files" / TEXT).unlink()
        partial.parent.mkdir()


def test_content_that_changes_on_the_way_is_refused(
    repository: Repository, hub: Hub, tmp_path: Path
) -> None:
    fetch.fetch(wanted(), tmp_path, hub)
    pinned = read_json(tmp_path / "pinned.json")
    for file in pinned["files"]:
        if file["path"] == TEXT:
            file["digest"] = "0" * 64
    write_json(tmp_path / "pinned.json", pinned)
    with pytest.raises(DataError, match="arrived damaged"):
        fetch.fetch(wanted(), tmp_path, hub)


def test_a_disk_that_is_too_small_is_seen_before(
    hub: Hub, small_disk: Path, loopback: LoopbackHub
) -> None:
    loopback.add(REPO, {TEXT: bytes(3_000_000)})
    with pytest.raises(DataError) as error:
        fetch.fetch(wanted(), small_disk, hub)
    assert "3,000,000 bytes" in str(error.value) and "nothing is lost" in str(error.value)
    assert asked(loopback, TEXT) == []


def test_a_disk_that_is_full_from_the_start(
    repository: Repository, hub: Hub, small_disk: Path
) -> None:
    with (small_disk / "other").open("wb", buffering=0) as stream, pytest.raises(OSError):
        while True:
            stream.write(bytes(4096))
    with pytest.raises(DataError, match="too full"):
        fetch.fetch(wanted(), small_disk / "source", hub)


@pytest.mark.parametrize("name", [PARQUET, TEXT])
def test_a_disk_that_fills_up_loses_nothing(
    name: str, hub: Hub, small_disk: Path, loopback: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else takes the space after the check."""
    logs = pa.table({"eval_logs": [os.urandom(300).hex() for _ in range(1500)]})
    wide = {PARQUET: parquet(logs, 100), TEXT: os.urandom(900_000)}
    loopback.add(REPO, wide)
    monkeypatch.setattr(columns, "_PIECE_BYTES", 100_000)
    monkeypatch.setattr(fetch, "_BLOCK_BYTES", 100_000)
    other = small_disk / "other"
    real, calls = hub.read, 0

    def read(*arguments: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 4:
            other.write_bytes(bytes(1_400_000))
        return real(*arguments)

    monkeypatch.setattr(Hub, "read", lambda self, *arguments: read(*arguments))
    request = wanted(patterns=(name,), columns=("eval_logs",))
    with pytest.raises(DataError) as error:
        fetch.fetch(request, small_disk / "source", hub)
    assert "too full" in str(error.value) and "bytes free" in str(error.value)
    other.unlink()
    loopback.requests.clear()
    fetch.fetch(request, small_disk / "source", hub)
    if name == TEXT:
        assert (small_disk / "source/files" / name).read_bytes() == wide[TEXT]
        assert asked(loopback, name)[0][0] > 0
    else:
        assert pq.read_table(small_disk / "source/files" / name).equals(logs)


def test_the_lock_names_the_commit(repository: Repository, hub: Hub, tmp_path: Path) -> None:
    origin = fetch.fetch(wanted(), tmp_path / "source", hub)["provenance"]
    build = write_build(tmp_path)
    assert build.target is not None
    candidates = read_json(build.candidates[0])
    name = candidates["provenance"]["dataset"]
    candidates["provenance"]["origin"] = origin
    write_json(build.candidates[0], candidates)
    write_lock(build.target, build.selections, build.candidates, [], tmp_path / "lock.json")
    entries = read_json(tmp_path / "lock.json")["datasets"]
    pinned = {"repo": REPO, "revision": "main", "commit": repository.branches["main"]}
    assert entries[name].items() >= pinned.items()
    assert [entry for entry in entries.values() if entry["commit"]] == [entries[name]]


def entry(**changes: Any) -> DatasetSettings:
    return DatasetSettings(**{"adapter": REPO, "take": 1, **changes})


def test_a_dataset_is_local_or_from_the_hub() -> None:
    assert entry(path="data").hub is None
    assert entry().hub == (REPO, "main")
    assert entry(repo="me/fork", revision="v2").hub == ("me/fork", "v2")
    assert entry(files=["data/**/x-*.parquet"]).files == ("data/**/x-*.parquet",)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"path": "data", "revision": "main"}, "not both"),
        ({"path": "data", "repo": REPO}, "not both"),
        ({"repo": "no-owner"}, "pattern"),
        ({"files": []}, "at least 1"),
        ({"files": ["/etc/*"]}, "no pattern"),
        ({"files": ["../x"]}, "no pattern"),
        ({"files": ["data/**.parquet"]}, "no pattern"),
    ],
)
def test_what_a_dataset_cannot_be(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        entry(**changes)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("data/train-*.parquet", ["data/train-0.parquet"]),
        ("*.jsonl", ["a.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "data/b.jsonl", "data/x/c.jsonl"]),
        ("data/*", ["data/b.jsonl", "data/train-0.parquet"]),
    ],
)
def test_patterns_mean_what_they_mean_for_local_files(
    pattern: str, matches: list[str], tmp_path: Path
) -> None:
    names = ["a.jsonl", "data/b.jsonl", "data/train-0.parquet", "data/x/c.jsonl"]
    remote = tuple(RemoteFile(name, 1, "") for name in names)
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    local = [path for path in tmp_path.glob(pattern) if path.is_file()]
    assert [file.path for file in wanted(patterns=(pattern,)).of(remote)] == matches
    assert sorted(path.relative_to(tmp_path).as_posix() for path in local) == matches
