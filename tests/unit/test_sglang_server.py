"""Servers without a server: commands, what they must say of themselves, and why they die."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.bench.serving import tally_of
from aerie.config import validate
from aerie.engines.sglang.client import Reply
from aerie.engines.sglang.diagnosis import CAUSES, Cause, cause_of, died, text_of
from aerie.engines.sglang.probe import Probe
from aerie.engines.sglang.settings import SglangSettings
from aerie.engines.sglang.spool import Spool
from aerie.engines.sglang.versions import check_version, numbers, speculation
from aerie.engines.sglang.wanted import Wanted, algorithm_of, check_layers
from aerie.errors import ConfigError, EngineError, GateError
from aerie.gates.serving import check_layers as check_resolved
from aerie.target import Target

ROOT = Path(__file__).resolve().parents[2]


def _draft(folder: Path, **content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    } | content
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _info(wanted: Wanted, settings: SglangSettings, **others: Any) -> dict[str, Any]:
    """`/server_info` of the server that `wanted` describes."""
    command = wanted.command(settings, "0.5.23", 30000)
    options = dict(zip(command[3::2], command[4::2], strict=False))
    draft = options.get("--speculative-draft-model-path")
    info = {
        "version": "0.5.23",
        "model_path": options["--model-path"],
        "dtype": options["--dtype"],
        "tp_size": int(options["--tp-size"]),
        "max_running_requests": int(options["--max-running-requests"]),
        "speculative_algorithm": options.get("--speculative-algorithm") if draft else None,
        "speculative_draft_model_path": draft,
        "speculative_num_steps": 3 if draft else None,
        "speculative_eagle_topk": 1 if draft else None,
        "speculative_num_draft_tokens": 4 if draft else None,
        "context_length": int(options.get("--context-length", 0)) or None,
        "disable_radix_cache": "--disable-radix-cache" in command,
        "pp_size": 1,
        "enable_dp_attention": False,
    }
    return info | others


def test_the_algorithm_follows_from_the_draft(tiny_target: Target, tmp_path: Path) -> None:
    draft, settings = _draft(tmp_path / "draft"), SglangSettings()
    wanted = Wanted.with_draft(tiny_target, draft, 3, Probe(tmp_path / "probe"))
    command = wanted.command(settings, "0.5.23", 30000)
    assert command[command.index("--speculative-algorithm") + 1] == "EAGLE3"
    assert command[command.index("--max-running-requests") + 1] == "128"
    wanted.check(_info(wanted, settings), settings, given=False)
    for wrong in ("EAGLE", None, "NEXTN"):
        info = _info(wanted, settings, speculative_algorithm=wrong)
        with pytest.raises(GateError, match=r"serving: .*does not run the draft as what it is"):
            wanted.check(info, settings, given=False)
    assert algorithm_of(_draft(tmp_path / "mla", architectures=["Eagle3DeepseekV2ForCausalLM"]))
    with pytest.raises(EngineError, match="LlamaForCausalLM'"):
        algorithm_of(_draft(tmp_path / "other", architectures=["LlamaForCausalLM"]))


def test_the_plain_server_speculates_not_and_capture_caches_not(
    tiny_target: Target, tmp_path: Path
) -> None:
    settings = SglangSettings(
        tp=8, memory_share=0.85, arguments=("--foo", "1"), draft_arguments=("--bar",)
    )
    plain = Wanted.plain(tiny_target).command(settings, "0.5.16", 1)
    assert not any("speculative" in word for word in plain) and "--bar" not in plain
    assert plain[-2:] == ["--foo", "1"] and plain[plain.index("--tp-size") + 1] == "8"
    assert plain[plain.index("--mem-fraction-static") + 1] == "0.85"
    spool = Spool(tmp_path, (2, 4, 5), 64)
    capture = Wanted.capture(tiny_target, spool)
    assert "--disable-radix-cache" in capture.command(settings, "0.5.16", 1)
    capture.check(_info(capture, settings), settings, given=False)
    with pytest.raises(EngineError, match="disable_radix_cache False"):
        capture.check(_info(capture, settings, disable_radix_cache=False), settings, given=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_path", "/other"),
        ("dtype", "auto"),
        ("tp_size", 2),
        ("max_running_requests", 48),
        ("speculative_algorithm", "EAGLE3"),
    ],
)
def test_every_field_that_differs_is_named(tiny_target: Target, field: str, value: object) -> None:
    wanted, settings = Wanted.plain(tiny_target), SglangSettings()
    wanted.check(_info(wanted, settings), settings, given=False)
    with pytest.raises(EngineError, match=f"saw: +{field} {value}"):
        wanted.check(_info(wanted, settings, **{field: value}), settings, given=False)


def test_a_given_server_may_call_the_target_by_its_name(tiny_target: Target) -> None:
    wanted = Wanted.plain(tiny_target)
    settings = SglangSettings(model="owner/name", tp=8)
    # Its parallelism is its owner's business.
    info = _info(wanted, SglangSettings(), model_path="owner/name")
    wanted.check(info, settings, given=True)
    with pytest.raises(EngineError, match="model_path owner/name"):
        wanted.check(info, SglangSettings(), given=True)


def test_layers_that_sglang_reads_otherwise_are_refused(
    tiny_target: Target, tmp_path: Path
) -> None:
    check_layers(tiny_target, (2, 4, 5))
    (tmp_path / "config.json").write_text('{"architectures": ["DeepseekV3ForCausalLM"]}')
    deepseek = replace(tiny_target, folder=tmp_path)
    check_layers(deepseek, (1, 29, 57))
    with pytest.raises(EngineError, match="begins with 1"):
        check_layers(deepseek, (2, 30, 58))
    check_resolved((2, 30, 58), (2, 30, 58))
    with pytest.raises(GateError, match="other layers"):
        check_resolved((3, 31, 59), (2, 30, 58))
    with pytest.raises(GateError, match="none that could be seen"):
        check_resolved(None, (2, 30, 58))


def test_plugins_are_found_and_no_other_one_is_lost(
    tiny_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "theirs")
    settings = SglangSettings(environment={"PYTHONPATH": "/theirs"})
    wanted = Wanted.with_draft(tiny_target, _draft(tmp_path / "d"), 3, Probe(tmp_path / "p"))
    environment = wanted.environment(settings)
    assert environment["SGLANG_PLUGINS"].split(",") == ["theirs", "aerie", "aerie_probe"]
    *own, theirs = environment["PYTHONPATH"].split(os.pathsep)
    assert theirs == "/theirs" and str(ROOT) in own
    code = "from importlib.metadata import entry_points as e; print(*e(group='sglang.srt.plugins'))"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "aerie.engines.sglang.probe:register" in found


def test_old_versions_are_refused() -> None:
    assert numbers("0.5.12.post1") == (0, 5, 12) < numbers("0.5.13")
    check_version("0.5.16")
    for old in ("0.5.12.post1", "0.4.9", "None"):
        with pytest.raises(EngineError, match="too old"):
            check_version(old)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_counts_of_every_version_mean_the_same(kept: list[int]) -> None:
    histogram = [kept.count(number) for number in range(4)]
    shared = {"completion_tokens": 1 + len(kept) + sum(kept), "spec_verify_ct": len(kept)}
    new = shared | {
        "spec_num_correct_drafts": sum(kept),
        "spec_correct_drafts_histogram": histogram,
        # What the server would have us believe.
        "spec_accept_length": shared["completion_tokens"] / len(kept),
    }
    old = shared | {"spec_accepted_drafts": sum(kept), "spec_accept_histogram": histogram}
    assert speculation(new) == speculation(old) == (len(kept), histogram)
    tally = tally_of(Reply([1], "stop", new, 1.0), 3)
    assert (tally.rounds, sum(tally.accepted)) == (len(kept), sum(kept))
    with pytest.raises(EngineError, match="do not agree"):
        speculation(new | {"spec_num_correct_drafts": sum(kept) + 1})


def test_a_server_without_a_draft_has_no_counts() -> None:
    assert speculation({"completion_tokens": 1}) == (0, [])
    with pytest.raises(EngineError, match="counts no draft tokens"):
        speculation({"completion_tokens": 9, "id": "x"})


# Lines as servers of 0.5.16 to 0.5.23 and the reports behind docs/troubleshooting.md have them.
_LOGS = {
    "the port is taken": "OSError: [Errno 98] error while attempting to bind on address",
    "the draft is shorter than the target's context": "ValueError: User-specified context_length "
    "(262144) is greater than the derived context_length (2048)",
    "memory of the GPU or the host does not suffice": "torch.OutOfMemoryError: CUDA out of memory.",
    "the target cannot hand layers to a draft": "AttributeError: 'KimiK25ForConditionalGeneration' "
    "object has no attribute 'set_eagle3_layers_to_capture'",
    "an attention backend does not fit the target or the draft": "ValueError: EAGLE is not "
    "supported in decode attention backend torch_native",
    "SGLang does not know this model": "ValueError: Cannot find model module. 'X' is not a "
    "registered model in the Transformers library",
    "the model's own code must be trusted": "ValueError: The repository contains custom code; "
    "please pass the argument `trust_remote_code=True`",
    "weights or files of the model are missing": "RuntimeError: Cannot find any model weights "
    "with `/m`",
    "an argument is not one of this version": "launch_server.py: error: unrecognized arguments: -x",
    "GPUs cannot talk to each other": "torch.distributed.DistBackendError: NCCL error in: x.cpp",
    "a library or package is missing": "ModuleNotFoundError: No module named 'torchaudio'",
    "there is no GPU that it can use": "RuntimeError: No CUDA GPUs are available",
    "one of its processes was killed, most likely by the kernel for want of memory": "Subprocess "
    "scheduler_0 (pid=1) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
    "it hung: no step within the watchdog's time": "Watchdog timeout (self.watchdog_timeout=300)",
}


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_each_cause_is_known_by_its_line(cause: Cause, tmp_path: Path) -> None:
    log = tmp_path / "log"
    noise = "Ignore import error when loading sglang.srt.models.x: No module named 'cutlass'\n"
    log.write_text("CUDA out of memory of an earlier start\n")
    start = log.stat().st_size
    log.write_text(log.read_text() + noise + f"INFO fine\n{_LOGS[cause.name]}\n")
    assert cause_of(text_of(log, start)) == cause
    error = str(died(log, start, 1, "while it served"))
    assert cause.name in error and cause.remedy in error and _LOGS[cause.name] in error
    assert "cutlass" not in error and "earlier start" not in error


def test_settings_reach_jobs_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SglangSettings(tp=8, arguments=("--a", "b"))
    monkeypatch.setenv("AERIE_SGLANG", settings.as_json())
    assert SglangSettings.from_environment() == settings
    monkeypatch.delenv("AERIE_SGLANG")
    assert SglangSettings.from_environment() == SglangSettings()
    monkeypatch.setenv("AERIE_SGLANG", '{"tpp": 8}')
    with pytest.raises(ConfigError, match="tpp"):
        SglangSettings.from_environment()
    with pytest.raises(ConfigError, match=r"sglang\.tp"):
        validate({"sglang": {"tp": 0}})


_STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["owner is killed", "owner lets go", "server ends"])
def test_no_process_of_a_server_outlives_it_or_its_owner(end: str) -> None:
    guard = [sys.executable, "-m", "aerie.engines.sglang.guard"]
    if end == "owner is killed":
        code = (
            "import subprocess, time; "
            f"p = subprocess.Popen({[*guard, sys.executable, '-c', _STUBBORN]!r}, "
            "stdin=subprocess.PIPE); time.sleep(600)"
        )
        command = [sys.executable, "-c", code]
    else:
        command = [*guard, sys.executable, "-c", _STUBBORN]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as first:
        assert first.stdin is not None and first.stdout is not None
        assert first.stdout.readline() == "up\n"
        children = psutil.Process(first.pid).children(recursive=True)
        assert len(children) == (3 if end == "owner is killed" else 2)
        match end:
            case "owner is killed":
                first.kill()
            case "owner lets go":
                first.stdin.close()
            case "server ends":
                children[0].kill()
        start = time.monotonic()
        _, alive = psutil.wait_procs(children, timeout=40)
        assert not alive, f"{alive} live after {time.monotonic() - start:.0f} s"
        if end == "server ends":
            assert first.wait(10) == 128 + signal.SIGKILL
