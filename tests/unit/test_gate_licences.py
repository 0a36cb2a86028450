"""The licence gate, and the licences of the mixes that come with Aerie."""

from pathlib import Path

import pytest
import yaml

from aerie.config import ROOT, load, validate
from aerie.errors import GateError
from aerie.gates.licences import check_licences
from aerie.prompts.adapters import adapter

MIXES = ["config.yaml", "demo/config.yaml", *map(str, (ROOT / "mixes").glob("*.yaml"))]


def of(adapter_id: str, **licences: object) -> None:
    data = yaml.safe_load((ROOT / "demo/config.yaml").read_text(encoding="utf-8"))
    data["datasets"] = {"own": {"adapter": adapter_id, "path": "x", "take": 1}}
    data["licences"] = licences
    check_licences(validate(data))


def test_allowed_licences_pass() -> None:
    of("nebius/SWE-agent-trajectories")
    of("BAAI/Infinity-Instruct", allow=["CC-BY-SA-4.0"])


@pytest.mark.parametrize("id", ["BAAI/Infinity-Instruct", "open-r1/Mixture-of-Thoughts"])
def test_others_need_an_entry_of_their_own(id: str) -> None:
    with pytest.raises(GateError) as error:
        of(id)
    message = str(error.value)
    assert f"own: {id} is {adapter(id).licence}" in message and "licences.accept" in message
    of(id, accept={id: "decided by the data owner"})


def test_unknown_is_no_licence_that_can_be_allowed_in_general() -> None:
    with pytest.raises(GateError):
        of("open-r1/Mixture-of-Thoughts", allow=["unknown"])


@pytest.mark.parametrize("mix", MIXES)
def test_the_mixes_that_come_with_aerie_pass(mix: str) -> None:
    config = load(Path(ROOT / mix))
    check_licences(config)
    if not mix.startswith("demo"):
        takes = [entry.take for entry in config.datasets.values()]
        assert len(takes) == 10 and all(2000 <= take <= 15_000 for take in takes)
        assert 95_000 <= sum(takes) <= 105_000


def test_the_table_of_the_docs_is_that_of_the_adapters() -> None:
    page = (ROOT / "docs/licences.md").read_text(encoding="utf-8")
    for mix in MIXES:
        for entry in load(Path(ROOT / mix)).datasets.values():
            reader = adapter(entry.adapter)
            terms = [word for word in ("gated", "share_alike") if getattr(reader, word)]
            cells = (
                reader.id,
                reader.licence,
                ", ".join(terms).replace("_", "-") or "—",
                reader.attribution,
            )
            assert f"| {' | '.join(cells)} |" in page
