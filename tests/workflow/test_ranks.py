"""A draft that several processes train, as its rule starts them, and one that is watched."""

import json

import pytest

from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.workflow


def test_two_processes_train_a_draft_as_the_rule_starts_them(checkout: Checkout) -> None:
    alone = json.loads((checkout.work / "draft/main/draft.json").read_text(encoding="utf-8"))
    assert alone["provenance"]["exported"] == {"step": alone["counts"]["steps"], "epoch": 2}
    checkout.configure(drafts__main__gpus=2, drafts__main__export="best")
    run = checkout.snakemake("--", "all_drafts")
    assert run.code == 0, run.text
    assert run.jobs == ["all_drafts", "draft main"]
    draft = json.loads((checkout.work / "draft/main/draft.json").read_text(encoding="utf-8"))
    assert draft["provenance"]["settings"]["gpus"] == 2
    # Two packs make a step, so there are fewer of them.
    assert draft["counts"]["steps"] < alone["counts"]["steps"]
    assert draft["counts"]["supervised"] == alone["counts"]["supervised"]
    epochs = json.loads((checkout.work / "draft/main/eval.json").read_text(encoding="utf-8"))
    lengths = [epoch["overall"]["accept_length"] for epoch in epochs["epochs"]]
    exported = draft["provenance"]["exported"]["epoch"]
    assert exported == 1 + lengths.index(max(lengths))
    # Both write to one log, and the first one alone says what goes on.
    (path,) = checkout.folder.rglob("logs/**/draft/main.log")
    text = path.read_text(encoding="utf-8")
    assert text.count("on 2 x cpu") == 1 and "\0" not in text
    assert not (checkout.work / "journal/draft/main").exists()
    assert (checkout.work / "tracking/main/tracking.jsonl").is_file()


def test_who_watches_makes_no_draft_stale(checkout: Checkout) -> None:
    checkout.configure(tracking__tensorboard=True)
    run = checkout.snakemake("--dry-run")
    assert run.code == 0, run.text
    assert not run.jobs, run.text
