"""The doctor: each miss is found, named and has a remedy; a machine that can is let through."""

import io
import os
import socket
import stat
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from aerie.config import ROOT, Config, load
from aerie.doctor.access import examine_hub, examine_images
from aerie.doctor.finding import Finding
from aerie.doctor.host import (
    Gpu,
    examine_fit,
    examine_gpus,
    examine_limits,
    examine_port,
    examine_runtimes,
    examine_sglang,
    read_gpus,
)
from aerie.doctor.run import refuse, run_doctor
from aerie.doctor.storage import examine_plan, examine_speed, examine_target, weights_bytes
from aerie.errors import GateError
from aerie.hub.client import Hub
from aerie.hub.retry import Retry
from tests.loopback_hub import LoopbackHub

H200 = "NVIDIA H200, 143771, 1, 580.95.05\n"
GPU = Gpu("NVIDIA H200", 143771 << 20, 1 << 20, "580.95.05")


def levels(findings: list[Finding]) -> dict[str, str]:
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    return {finding.name: finding.level for finding in findings}


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def configured(tmp_path: Path, **changes: object) -> Config:
    """The demo's configuration with its work folder in `tmp_path`."""
    content = yaml.safe_load((ROOT / "demo/config.yaml").read_text(encoding="utf-8"))
    content |= {"work": str(tmp_path / "work"), **changes}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return load(path)


def test_gpus_are_read_as_the_driver_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    program(tmp_path / "bin", "nvidia-smi", f"for i in 1 2; do printf '{H200}'; done")
    found = read_gpus()
    assert found == [GPU, GPU]
    assert levels(list(examine_gpus(found, 2))) == dict.fromkeys(
        ("GPUs", "GPU memory", "driver"), "ok"
    )


def test_a_driver_that_fails_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    program(tmp_path / "bin", "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    (miss,) = examine_gpus(read_gpus(), 8)
    assert (miss.level, miss.saw) == ("miss", "nvidia-smi: NVIDIA-SMI has failed")


@pytest.mark.parametrize(
    ("gpus", "missing"),
    [
        ([GPU] * 4, {"GPUs"}),
        ([GPU] * 7 + [Gpu(GPU.name, GPU.memory, GPU.memory // 2, GPU.driver)], {"GPU memory"}),
        ([Gpu(GPU.name, GPU.memory, 0, "570.86.15")] * 8, {"driver"}),
        ([], {"GPUs"}),
    ],
)
def test_what_is_wrong_with_gpus_is_named(gpus: list[Gpu], missing: set[str]) -> None:
    found = levels(list(examine_gpus(gpus, 8)))
    assert {name for name, level in found.items() if level == "miss"} == missing


def test_the_target_leaves_room_for_its_cache() -> None:
    memory = 8 * GPU.memory
    assert levels(list(examine_fit(int(0.8 * memory), [GPU] * 8))) == {"target fits": "ok"}
    assert levels(list(examine_fit(int(0.8 * memory) + 1, [GPU] * 8))) == {"target fits": "miss"}
    assert levels(list(examine_fit(None, [GPU]))) == {"target fits": "note"}


def test_limits_are_those_of_this_process(tmp_path: Path) -> None:
    found = {finding.name: finding for finding in examine_limits(tmp_path / "none")}
    assert set(found) == {"open files", "locked memory", "shared memory"}
    assert found["shared memory"].level == "miss"


def test_a_port_in_use_is_a_miss() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert levels(list(examine_port("127.0.0.1", port))) == {"port": "miss"}
    assert levels(list(examine_port("127.0.0.1", port))) == {"port": "ok"}


def test_the_python_of_servers_is_asked_for_sglang(tmp_path: Path) -> None:
    assert levels(list(examine_sglang("python"))) == {"SGLang": "note"}
    assert levels(list(examine_sglang(str(tmp_path / "python")))) == {"SGLang": "note"}
    program(tmp_path / "bin", "python", "echo 0.5.21")
    assert levels(list(examine_sglang(str(tmp_path / "bin/python")))) == {"SGLang": "ok"}


@pytest.mark.parametrize(
    ("docker", "level"),
    [
        ("exit 1", {"containers": "ok", "Docker": "note"}),
        ("echo '{\"runc\":{}} 28.2.2'", {"containers": "ok", "Docker": "note"}),
        ("echo '{\"nvidia\":{}} 28.2.2'", {"containers": "ok"}),
        (None, {"containers": "note"}),
    ],
)
def test_runtimes_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: str | None, level: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    if docker:
        program(tmp_path / "bin", "docker", docker)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert levels(list(examine_runtimes())) == level


def test_the_disk_is_measured(tmp_path: Path) -> None:
    (finding,) = examine_speed(tmp_path / "work", 16 << 20)
    assert finding.name == "disk speed" and "GB/s" in finding.saw
    assert not list((tmp_path / "work").iterdir())


def test_a_plan_that_does_not_fit_is_a_miss(tmp_path: Path) -> None:
    assert levels(list(examine_plan(configured(tmp_path)))) == {"plan": "ok"}
    huge = {"layers": 30, "hidden_size": 576_000_000, "max_position": 8192}
    (miss,) = examine_plan(configured(tmp_path, plan={"shape": huge}))
    assert miss.level == "miss" and "does not fit on the disk" in miss.saw


def test_a_checkpoint_that_is_not_there_is_a_miss(tmp_path: Path) -> None:
    target = {"name": "t", "source": {"path": str(tmp_path / "model")}}
    config = configured(tmp_path, target=target)
    (miss,) = examine_target(config)
    assert miss.level == "miss" and "*.safetensors" in miss.saw
    assert weights_bytes(config) is None
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer_config.json", "model-00001.safetensors"):
        (tmp_path / "model" / name).write_bytes(b"12345678")
    assert levels(list(examine_target(config))) == {"target": "ok"}
    assert weights_bytes(config) == 8


def test_images_that_are_not_built_are_noted(tmp_path: Path) -> None:
    found = levels(list(examine_images(configured(tmp_path), tmp_path)))
    assert found == {"images": "miss"}  # there is no lock


MAGICODER = "ise-uiuc/Magicoder-Evol-Instruct-110K"


def from_hub(tmp_path: Path) -> Config:
    return configured(tmp_path, datasets={"magicoder": {"adapter": MAGICODER, "take": 8}})


def test_datasets_that_are_here_need_no_hub(tmp_path: Path) -> None:
    assert levels(list(examine_hub(configured(tmp_path)))) == {"datasets": "ok"}
    config = from_hub(tmp_path)
    source = Path(config.work) / "sources/magicoder/source.json"
    source.parent.mkdir(parents=True)
    source.write_text("{}", encoding="utf-8")
    assert levels(list(examine_hub(config))) == {"datasets": "ok"}


def test_gated_datasets_need_a_token_that_may_read(
    tmp_path: Path, loopback: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(loopback.url, Retry(tries=1))
    (miss,) = examine_hub(from_hub(tmp_path), hub)
    assert miss.level == "miss" and f"no dataset {MAGICODER}" in miss.saw
    loopback.add(MAGICODER, {"a.jsonl": b"{}"}, gated="manual", readers={"hf_mine"})
    (miss,) = examine_hub(from_hub(tmp_path), hub)
    assert miss.level == "miss" and "is gated" in miss.saw
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    found = list(examine_hub(from_hub(tmp_path), hub))
    assert levels(found) == {"datasets": "ok"}
    assert "hf_mine" not in str(found)


def test_a_hub_that_is_away_is_asked_once(tmp_path: Path, loopback: LoopbackHub) -> None:
    loopback.fail(9)
    entries = {name: {"adapter": f"{name}/{name}", "take": 8} for name in ("a", "b")}
    found = list(
        examine_hub(configured(tmp_path, datasets=entries), Hub(loopback.url, Retry(tries=1)))
    )
    assert [finding.level for finding in found] == ["miss"]
    assert len(loopback.requests) == 1


def test_every_miss_is_in_the_refusal() -> None:
    ok, note = Finding("a", "ok", "fine"), Finding("b", "note", "slow", "buy")
    refuse([ok, note])
    with pytest.raises(GateError) as error:
        refuse(
            [ok, note, Finding("c", "miss", "none", "one"), Finding("d", "miss", "two", "three")]
        )
    text = str(error.value)
    assert "2 things missing" in text and "make demo" in text
    assert all(word in text for word in ("c: none", "one", "d: two", "three"))
    assert "slow" not in text


def test_a_laptop_is_told_to_run_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    stream = io.StringIO()
    with pytest.raises(GateError, match=r"(?s)no nvidia-smi.*`make demo`"):
        run_doctor(configured(tmp_path, engine="sglang"), Console(file=stream, width=100))
    assert "GPUs" in stream.getvalue()
