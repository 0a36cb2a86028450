"""Only what changed is rebuilt: the exact jobs that each change starts."""

import os
import shutil

import pytest

from aerie.files import read_json
from tests.workflow.conftest import Checkout, write_dataset

pytestmark = pytest.mark.workflow

AFTER_STATES = ["bench main heldout", "draft main", "lock", "manifest", "report"]
DATA = "data/{}/data-evol_instruct-decontaminated.jsonl"


def test_a_second_run_starts_no_job(checkout: Checkout) -> None:
    run = checkout.snakemake()
    assert (run.code, run.jobs) == (0, []), run.text


def test_growing_a_take_runs_its_new_part_and_what_depends_on_it(checkout: Checkout) -> None:
    before = checkout.digests()
    checkout.configure(datasets__first__take=12)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert run.jobs == sorted(
        ["prompts first", "overlap", "responses first 002", "states first 002", "counts first",
         "map", *AFTER_STATES]
    )  # fmt: skip
    after = checkout.digests()
    kept = [name for name in before if name.split("/")[0] in ("prompts", "responses", "states")]
    changed = [name for name in kept if after[name] != before[name]]
    assert changed == ["prompts/first/licence.json", "prompts/first/selection.json"]


def test_the_size_of_the_map_touches_no_response_and_no_state(checkout: Checkout) -> None:
    checkout.configure(vocab__size=192)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert run.jobs == ["bench main heldout", "draft main", "lock", "map", "report"]


def test_the_codec_teacher_goes_through_and_knows_no_map(checkout: Checkout) -> None:
    checkout.configure(states__codec="teacher", states__teacher__k=32)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    parts = [f"states {name} {part}" for name in ("first", "second") for part in ("000", "001")]
    assert run.jobs == sorted([*parts, *AFTER_STATES])
    tensors = read_json(checkout.work / "states/first/000/index.json")["files"]
    assert {"top_ids", "top_logprobs", "tail"} < set(tensors["00000.safetensors"]["xxh3"])
    checkout.configure(vocab__size=192)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert run.jobs == ["bench main heldout", "draft main", "lock", "map", "report"]


def test_a_setting_of_a_codec_that_is_not_used_starts_no_job(checkout: Checkout) -> None:
    checkout.configure(states__teacher__k=16)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    # The lock names the settings of a build, and the report shows the lock.
    assert run.jobs == ["lock", "report"]


def test_a_map_of_the_same_bytes_wakes_no_draft(checkout: Checkout) -> None:
    """The floor of the coverage gate is a parameter of the map, and changes none of its bytes."""
    checkout.configure(vocab__floor=0.01)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    # The lock names the settings of a build, and the report shows the lock.
    assert run.jobs == ["lock", "map", "report"]


def test_k_of_the_bench_touches_bench_and_report(checkout: Checkout) -> None:
    checkout.configure(bench__k=1)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert run.jobs == ["bench main heldout", "lock", "report"]


def test_one_more_row_in_a_dataset_reaches_the_parts_that_it_falls_into(checkout: Checkout) -> None:
    write_dataset(checkout.folder / DATA.format("second"), 25, "second")
    run = checkout.snakemake("--until", "prompts", "responses")
    assert run.code == 0, run.text
    assert [job for job in run.jobs if "first" in job] == []
    assert {"candidates second", "prompts second"} <= set(run.jobs)


def test_the_second_dataset_does_not_disturb_the_first(checkout: Checkout) -> None:
    checkout.configure(datasets__second__take=4)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert run.jobs == sorted(["prompts second", "overlap", "counts second", "map", *AFTER_STATES])


def test_touching_files_wakes_nothing(checkout: Checkout) -> None:
    for path in checkout.folder.rglob("*"):
        if path.suffix in (".py", ".smk", ".jsonl") or path.name == "Snakefile":
            os.utime(path)
    run = checkout.snakemake()
    assert (run.code, run.jobs) == (0, []), run.text


def test_an_edit_of_a_cheap_phase_stops_where_its_bytes_stay_the_same(checkout: Checkout) -> None:
    """Selection is a checkpoint: nothing after it wakes when the same prompts come out."""
    module = checkout.folder / "aerie/prompts/select.py"
    module.write_text(module.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    run = checkout.snakemake()
    assert run.code == 0, run.text
    costly = [job for job in run.jobs if job.split()[0] in ("responses", "states", "draft")]
    assert costly == []
    assert {"prompts first", "prompts second"} <= set(run.jobs)


def test_an_edit_of_a_costly_phase_rebuilds_nothing(checkout: Checkout) -> None:
    """Responses, states and draft carry a contract version instead of their code."""
    for name in ("responses/run.py", "states/run.py", "train/checkpoint.py"):
        module = checkout.folder / "aerie" / name
        module.write_text(module.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    run = checkout.snakemake()
    assert (run.code, run.jobs) == (0, []), run.text


def test_a_lost_states_file_is_found_and_only_it_is_made_again(checkout: Checkout) -> None:
    before = checkout.digests()
    folder = checkout.work / "states/first/001"
    next(folder.glob("*.safetensors")).unlink()
    (folder / "index.json").unlink()
    run = checkout.snakemake()
    assert run.code == 0, run.text
    # The bench is measured again, the draft behind it is not trained again.
    assert run.jobs == ["bench main heldout", "manifest", "report", "states first 001"]
    assert checkout.digests() == before


def test_answers_are_never_paid_for_twice(checkout: Checkout) -> None:
    """With the journal in place, lost responses come back without the target being loaded."""
    before = checkout.digests()
    shutil.rmtree(checkout.work / "responses/first")
    # No target is loaded without it.
    (checkout.folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    lost = [f"results/tiny/responses/first/{part}.json" for part in ("000", "001")]
    run = checkout.snakemake("--", *lost)
    assert run.code == 0, run.text
    assert run.jobs == ["responses first 000", "responses first 001"]
    assert checkout.digests() == before
