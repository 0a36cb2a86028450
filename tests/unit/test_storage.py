"""`aerie du` counts what is there and what is missing; `aerie gc` removes nothing that counts."""

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.config import Config
from aerie.contracts.responses import (
    Response,
    ResponseReason,
    write_response_rejects,
    write_responses,
)
from aerie.contracts.sidecar import write_sidecar
from aerie.engines.base import Answer
from aerie.errors import AerieError, ContractError
from aerie.files import write_json
from aerie.responses.journal import Journal
from aerie.states.manifest import write_manifest
from aerie.storage.commands import no_build
from aerie.storage.garbage import Kind, find_garbage, in_order, remove
from aerie.storage.usage import Missing, forecast, usage
from aerie.verify import verify
from tests.commands import aerie
from tests.unit.states_fixtures import write_part, write_target

DATASETS, PARTS = ("chat", "code"), ("000", "001")
NOW = 1_700_000_000.0


@dataclass
class PartPlan:
    """What is there of one part."""

    selected: bool = True
    responses: bool = True
    journal: bool = True
    unsaved: bool = False
    captured: bool = True
    indexed: bool = True
    target: str = "revision"
    named: bool = True
    extra: bool = False
    fresh: bool = False


@dataclass
class Plan:
    """What a work folder holds."""

    parts: dict[tuple[str, str], PartPlan] = field(
        default_factory=lambda: {(name, part): PartPlan() for name in DATASETS for part in PARTS}
    )
    selections: frozenset[str] = frozenset(DATASETS)
    target: bool = True
    manifest: bool = True


PLANS = st.builds(
    Plan,
    st.fixed_dictionaries(
        {
            (name, part): st.builds(
                PartPlan,
                *[st.booleans()] * 6,
                target=st.sampled_from(["revision", "earlier"]),
                named=st.booleans(),
                extra=st.booleans(),
                fresh=st.booleans(),
            )
            for name in DATASETS
            for part in PARTS
        }
    ),
    st.frozensets(st.sampled_from(DATASETS)),
    st.booleans(),
    st.booleans(),
)


def answers_of(dataset: str, part: str) -> list[Response]:
    return [
        Response(
            id=f"{dataset}-{part}-{number}.0",
            dataset=dataset,
            part=int(part),
            mode="instant",
            prompt_ids=[1, 2],
            output_ids=[number, 3, 1],
            finish_reason="stop",
            request_digest=f"{dataset} {part} {number}",
            text="",
        )
        for number in range(3)
    ]


def build(work: Path, plan: Plan) -> None:
    """The folder that `plan` describes; all files are old, but those of fresh parts."""
    if plan.target:
        write_target(work / "target")
    for dataset in plan.selections:
        parts = [
            {"name": part, "rows": 4, "dropped": 0}
            for part in PARTS
            if plan.parts[dataset, part].selected
        ]
        write_json(work / "prompts" / dataset / "selection.json", {"parts": parts})
    named = []
    for (dataset, part), what in plan.parts.items():
        write_answers(work, dataset, part, what)
        folder = work / "states" / dataset / part
        if what.captured:
            write_part(folder, [[5, 3], [4]], what.target)
            if what.named:
                named.append(folder / "index.json")
        if what.extra:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "00007.safetensors").write_bytes(b"of another cut")
            (folder / "server.log").write_text("ready")
    if plan.manifest:
        write_manifest(named, work / "states" / "manifest.json")
    for (dataset, part), what in plan.parts.items():
        if not what.indexed and dataset not in {path.parts[-3] for path in named}:
            (work / "states" / dataset / part / "index.json").unlink(missing_ok=True)
    write_json(work / "logs" / "map.log", {})
    for path in work.rglob("*"):
        place = path.relative_to(work).with_suffix("").parts
        fresh = any(
            what.fresh and {dataset, part} <= set(place)
            for (dataset, part), what in plan.parts.items()
        )
        os.utime(path, (NOW, NOW) if fresh else (NOW - 7200, NOW - 7200))


def write_answers(work: Path, dataset: str, part: str, what: PartPlan) -> None:
    answers = answers_of(dataset, part)
    table = work / "responses" / dataset / f"{part}.parquet"
    if what.responses:
        rejects = table.with_suffix(".rejects.parquet")
        write_responses(table, answers[:2])
        write_response_rejects(rejects, [(answers[2], ResponseReason.REPETITIVE)])
        counts = {"rows": 2, "prompt_tokens": 4, "output_tokens": 6}
        provenance = {"target": "revision"}
        write_sidecar(table.with_suffix(".json"), "responses", [table, rejects], counts, provenance)
    if what.journal:
        with Journal(work / "journal" / "responses" / dataset / f"{part}.jsonl") as journal:
            journal.add((each.request_digest, Answer(each.output_ids, "stop")) for each in answers)
            if what.unsaved:
                journal.add([("asked, not judged", Answer([9, 1], "stop"))])


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def copies(work: Path) -> set[tuple[str, str]]:
    """Every answer in `work`, wherever it is."""
    found: set[tuple[str, str]] = set()
    for path in work.glob("journal/responses/*/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found.add((entry["digest"], str(entry["output_ids"])))
    for dataset, part in Plan().parts:
        if (work / "responses" / dataset / f"{part}.parquet").exists():
            found |= {(r.request_digest, str(r.output_ids)) for r in answers_of(dataset, part)}
    return found


def removed(work: Path, config: Config | None = None) -> dict[str, str]:
    """Remove what is found; why, by path."""
    garbage = find_garbage(work, config, NOW)
    before = names(work)
    remove(work, garbage)
    assert before - names(work) == {str(entry.path) for entry in garbage}
    return {str(entry.path): entry.why for entry in garbage}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(plan=PLANS)
def test_gc_removes_nothing_that_counts(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan
) -> None:
    work = tmp_path_factory.mktemp("gc") / "work"
    build(work, plan)
    damaged = {str(finding.file) for finding in verify(work).findings}
    before, said, answers = names(work), verify(work).checked, copies(work)
    gone = set(removed(work))
    # What verify reads is as whole as it was.
    after = verify(work)
    assert {str(finding.file) for finding in after.findings} <= damaged
    assert all(
        after.checked.get(name) == said[name] for name in said if name[:2] not in ("st", "ma")
    )
    # Every answer has a copy, and every table of answers is there.
    assert copies(work) == answers
    assert not {name for name in gone if name.startswith(("responses", "prompts", "target"))}
    # States that the target and the selection still have are there.
    for (dataset, part), what in plan.parts.items():
        wanted = dataset not in plan.selections or what.selected
        if wanted and what.captured and (what.target == "revision" or not plan.target):
            own = {f"states/{dataset}/{part}/{n}" for n in ("00000.safetensors", "index.json")}
            assert not own & gone
        if what.fresh:
            assert not {name for name in gone if f"{dataset}/{part}" in name}
    # Once is enough.
    assert names(work) == before - gone
    assert find_garbage(work, None, NOW) == []


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(plan=PLANS, data=st.data())
def test_a_killed_gc_leaves_what_verify_takes(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, data: st.DataObject
) -> None:
    work = tmp_path_factory.mktemp("gc") / "work"
    build(work, plan)
    damaged = {str(finding.file) for finding in verify(work).findings}
    garbage = in_order(find_garbage(work, None, NOW))
    remove(work, garbage[: data.draw(st.integers(0, len(garbage)))])
    assert {str(finding.file) for finding in verify(work).findings} <= damaged
    remove(work, garbage)
    assert find_garbage(work, None, NOW) == []


def test_a_whole_build_keeps_all_but_its_logs(tmp_path: Path) -> None:
    build(tmp_path, Plan())
    assert removed(tmp_path) == {"logs/map.log": "log of a job that ended"}


def test_a_part_that_is_not_selected(tmp_path: Path) -> None:
    plan = Plan()
    plan.parts["code", "001"] = PartPlan(selected=False, named=False)
    build(tmp_path, plan)
    gone = removed(tmp_path)
    assert set(gone) == {
        "journal/responses/code/001.jsonl",
        "logs/map.log",
        "states/code/001/00000.safetensors",
        "states/code/001/00001.safetensors",
        "states/code/001/index.json",
    }
    assert gone["states/code/001/index.json"] == "states of a part that is not selected"
    assert not (tmp_path / "states/code/001").exists()


def test_the_manifest_goes_with_states_that_it_names(tmp_path: Path) -> None:
    plan = Plan()
    plan.parts["chat", "000"] = PartPlan(target="earlier")
    build(tmp_path, plan)
    gone = removed(tmp_path)
    assert gone["states/chat/000/index.json"] == "states of another target"
    assert "states/manifest.json" in gone
    assert verify(tmp_path).findings == []


def test_a_manifest_that_cannot_be_read_keeps_all_states(tmp_path: Path) -> None:
    plan = Plan()
    plan.parts["chat", "000"] = PartPlan(target="earlier")
    build(tmp_path, plan)
    (tmp_path / "states/manifest.json").write_text("{")
    assert not [name for name in removed(tmp_path) if name.startswith("states")]


@pytest.mark.parametrize(
    ("what", "spoil"),
    [
        (PartPlan(selected=False, unsaved=True), None),
        (PartPlan(selected=False, responses=False), None),
        (PartPlan(selected=False), b"half a line\n"),
        (PartPlan(selected=False), "table"),
    ],
    ids=["more answers than the table", "no table", "a damaged line", "a damaged table"],
)
def test_a_journal_with_the_last_copy_stays(tmp_path: Path, what: PartPlan, spoil: Any) -> None:
    plan = Plan()
    plan.parts["code", "001"] = what
    build(tmp_path, plan)
    if isinstance(spoil, bytes):
        journal = tmp_path / "journal/responses/code/001.jsonl"
        journal.write_bytes(journal.read_bytes() + spoil)
        os.utime(journal, (NOW - 7200, NOW - 7200))
    elif spoil:
        table = tmp_path / "responses/code/001.parquet"
        table.write_bytes(table.read_bytes()[:-1])
    assert "journal/responses/code/001.jsonl" not in removed(tmp_path)


def test_answers_that_differ_are_not_copies(tmp_path: Path) -> None:
    plan = Plan()
    plan.parts["code", "001"] = PartPlan(selected=False, journal=False)
    build(tmp_path, plan)
    path = tmp_path / "journal/responses/code/001.jsonl"
    with Journal(path) as journal:
        journal.add([("code 001 0", Answer([7, 7], "stop"))])
    os.utime(path, (NOW - 7200, NOW - 7200))
    assert "journal/responses/code/001.jsonl" not in removed(tmp_path)


def test_scratch_of_killed_jobs(tmp_path: Path) -> None:
    build(tmp_path, Plan())
    scratch = [
        "states/chat/000/.00003.safetensors.tmp",
        "responses/chat/.000.parquet.ab12.tmp",
        "prompts/.chat.tmp/000.parquet",
        "prompts/.chat.old/selection.json",
        "journal/draft/main/.step-000050.tmp/state.safetensors",
    ]
    # Downloaded, whatever it is called; and of a job that may be running.
    others = ["sources/chat/files/a/.notes.tmp", "draft/main/.config.json.x.tmp"]
    for name in (*scratch, *others):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (NOW, NOW) if "draft/main/.c" in name else (NOW - 7200, NOW - 7200))
    gone = removed(tmp_path)
    assert {name for name, why in gone.items() if why.startswith("scratch")} == set(scratch)
    assert not (tmp_path / "prompts/.chat.tmp").exists()
    assert all((tmp_path / name).exists() for name in others)


def test_a_scratch_name_that_a_sidecar_vouches_for(tmp_path: Path) -> None:
    """A checkpoint may bring a file of any name, and target.json describes it."""
    write_target(tmp_path / "target")
    odd = tmp_path / "target" / ".vocabulary.tmp"
    odd.write_bytes(b"ids")
    files = [odd, tmp_path / "target" / "model.safetensors"]
    provenance = {"revision": "revision"}
    write_sidecar(tmp_path / "target" / "target.json", "target", files, {}, provenance)
    os.utime(odd, (NOW - 7200, NOW - 7200))
    assert removed(tmp_path) == {}


def test_checkpoints_of_a_draft_that_is_done(tmp_path: Path) -> None:
    for name, age in (
        ("journal/draft/main/step-000050/state.json", 9000),
        ("draft/main/draft.json", 8000),
        ("journal/draft/main/step-000100/state.json", 7000),
        ("journal/draft/other/step-000050/state.json", 9000),
    ):
        write_json(tmp_path / name, {})
        os.utime(tmp_path / name, (NOW - age, NOW - age))
    assert set(removed(tmp_path)) == {"journal/draft/main/step-000050/state.json"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere, work = tmp_path / "elsewhere", tmp_path / "work"
    plan = Plan()
    for key in plan.parts:
        plan.parts[key] = PartPlan(selected=False)
    build(elsewhere, plan)
    work.mkdir()
    for name in ("states", "journal", "logs"):
        (work / name).symlink_to(elsewhere / name)
    for name in ("prompts", "responses"):
        (work / name).mkdir()
        for dataset in DATASETS:
            (work / name / dataset).symlink_to(elsewhere / name / dataset)
    before = names(elsewhere)
    assert removed(work) == {}
    # A journal whose answers lie behind a link alone has the last copy of this folder.
    (work / "journal").unlink()
    (elsewhere / "journal").rename(work / "journal")
    assert removed(work) == {}
    assert names(elsewhere) == {name for name in before if not name.startswith("journal")}
    assert [row.phase for row in usage(work)] == ["journal", "journal"]


def test_a_folder_that_became_a_link_is_not_emptied(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    build(work, Plan())
    garbage = find_garbage(work, None, NOW)
    (work / "logs").rename(elsewhere)
    (work / "logs").symlink_to(elsewhere)
    with pytest.raises(ContractError, match="reached through a link"):
        remove(work, garbage)
    assert (elsewhere / "map.log").exists()


def test_the_work_folder_may_be_a_link(tmp_path: Path) -> None:
    build(tmp_path / "disk", Plan())
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    assert set(removed(tmp_path / "results")) == {"logs/map.log"}


def config(**changes: Any) -> Config:
    entry = {"adapter": "generic/messages", "path": "data", "take": 8}
    return Config.model_validate(
        {
            "work": "results/x",
            "target": {"name": "tiny", "source": {"path": "checkpoint"}},
            "datasets": {"chat": entry, "code": entry},
            "bench": {"suites": {"heldout": "heldout.jsonl"}},
            "states": {"layers": [2, 3, 5]},
            **changes,
        }
    )


def test_what_a_configuration_does_not_name(tmp_path: Path) -> None:
    build(tmp_path, Plan())
    entry = {"adapter": "generic/messages", "path": "data", "take": 8}
    assert set(removed(tmp_path, config())) == {"logs/map.log"}
    gone = removed(tmp_path, config(datasets={"chat": entry}))
    assert {name for name in gone if name.startswith(("states", "journal"))} == {
        "states/manifest.json",
        *(f"journal/responses/code/{part}.jsonl" for part in PARTS),
        *(
            f"states/code/{part}/{name}"
            for part in PARTS
            for name in ("00000.safetensors", "00001.safetensors", "index.json")
        ),
    }
    gone = removed(tmp_path, config(states={"layers": [1, 2, 3]}))
    assert set(gone.values()) == {"states of other layers or another codec"}
    assert verify(tmp_path).findings == []


def test_settings_of_a_codec_count_where_it_is_used(tmp_path: Path) -> None:
    build(tmp_path, Plan())
    states = {"layers": [2, 3, 5], "teacher": {"k": 5}}
    assert set(removed(tmp_path, config(states=states))) == {"logs/map.log"}
    gone = removed(tmp_path, config(states={**states, "codec": "teacher"}))
    assert gone.pop("states/manifest.json") == "the manifest names states that are stale"
    assert set(gone.values()) == {"states of other layers or another codec"}


def test_du_counts_files_and_tokens(tmp_path: Path) -> None:
    build(tmp_path, Plan())
    (tmp_path / "lock.json").write_text("{}")
    rows = {(row.phase, row.dataset): row for row in usage(tmp_path)}
    assert rows["responses", "chat"].files == 6
    assert rows["responses", "chat"].tokens == 20
    assert rows["states", "code"].tokens == 24
    assert rows["states", None].files == 1
    assert rows["journal", "chat"].tokens is None
    assert rows["other", None].bytes == 2
    assert sum(row.files for row in rows.values()) == len(names(tmp_path))
    assert sum(row.bytes for row in rows.values()) == sum(
        (tmp_path / name).stat().st_size for name in names(tmp_path)
    )
    assert forecast(tmp_path) == []


def test_du_forecasts_what_is_missing(tmp_path: Path) -> None:
    plan = Plan()
    plan.parts["chat", "001"] = PartPlan(responses=False, captured=False, named=False)
    plan.parts["code", "000"] = PartPlan(target="earlier")
    build(tmp_path, plan)
    sizes = [path.stat().st_size for path in tmp_path.glob("responses/*/*.parquet")]
    states = [path.stat().st_size for path in tmp_path.glob("states/*/*/*.safetensors")]
    assert forecast(tmp_path) == [
        # Four prompts at the 10 tokens that the other four have.
        Missing("responses", "chat", 1, 10, round(10 * sum(sizes) / 30), "mean"),
        Missing("states", "chat", 1, 10, round(10 * sum(states) / 36), "mean"),
        # Answered, and captured for another target: its tokens are known.
        Missing("states", "code", 1, 10, round(10 * sum(states) / 36), "exact"),
    ]


def test_du_takes_the_plan_where_nothing_is_selected(tmp_path: Path) -> None:
    entry = {"dataset": "chat", "prompts": 40, "parts": 2, "tokens": {"expected": 1000.4}}
    storage = {"codec": "bf16", "bytes_per_token": {"bf16": 69}}
    content = {"artifact": "plan", "contract": 1, "entries": [entry], "storage": storage}
    write_json(tmp_path / "plan/plan.json", content)
    assert forecast(tmp_path) == [
        Missing("responses", "chat", 2, 1000, 9500, "plan"),
        Missing("states", "chat", 2, 1000, 69_000, "plan"),
    ]
    write_json(tmp_path / "prompts/chat/selection.json", {"parts": [{"name": "000", "rows": 20}]})
    write_json(tmp_path / "prompts/code/selection.json", {"parts": [{"name": "000", "rows": 20}]})
    assert forecast(tmp_path) == [
        Missing("responses", "chat", 1, 500, 4750, "plan"),
        Missing("responses", "code", 1, None, None, "unknown"),
        Missing("states", "chat", 1, 500, 34_500, "plan"),
        Missing("states", "code", 1, None, None, "unknown"),
    ]


def test_a_build_and_gc_exclude_each_other(tmp_path: Path) -> None:
    with no_build(tmp_path):
        pass
    with (tmp_path / ".snakemake/build.lock").open() as build_lock:
        fcntl.flock(build_lock, fcntl.LOCK_EX)
        with pytest.raises(AerieError, match="a build is running"), no_build(tmp_path):
            pass


def test_command_line(tmp_path: Path) -> None:
    work = tmp_path / "work"
    build(work, Plan())
    before = names(work)
    result = aerie("du", work)
    assert result.returncode == 0, result.stderr
    assert "nothing is missing" in result.stdout
    result = aerie("gc", work, "--only", Kind.STATES)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "everything is needed, or younger than an hour\n"
    result = aerie("gc", work, "--config", "demo/config.yaml")
    assert result.returncode == 1
    assert "is of another work folder" in result.stderr
    result = aerie("gc", tmp_path / "nothing")
    assert result.returncode == 1 and "is not a folder" in result.stderr
    assert names(work) == before
