"""Real SGLang servers on the CPU: the environment of `make test-sglang`, stand-in kernels."""

import os
from pathlib import Path

import pytest

from aerie.config import PathSource, TargetSettings, VocabSettings
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.target import Target
from aerie.target_build import build_target
from tests.conftest import save_tiny_checkpoint
from tests.engine.conftest import QUESTIONS, SETTINGS, VOCAB, Raised, raise_draft
from tests.engine.conftest import raised as raised  # a draft that learnt a tiny target's answers

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).resolve().parent / "stand_in"
PYTHON = Path(os.environ.get("AERIE_TEST_SGLANG", ROOT / ".venv-sglang")) / "bin" / "python"

# intel_amx is the backend with which SGLang speculates on a CPU; a cache of 8,192 tokens is small.
ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--sampling-backend", "pytorch"),
    *("--max-total-tokens", "8192", "--mem-fraction-static", "0.3"),
    "--disable-overlap-schedule",
    # Else an idle server polls, and two cores are few.
    "--sleep-on-idle",
)
ENVIRONMENT = {
    "PYTHONPATH": str(STAND_IN),
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "2",
    # Compiling for a few tokens takes longer than they do.
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.sglang)
            if not PYTHON.exists():
                item.add_marker(pytest.mark.skip(reason=f"no {PYTHON}: make test-sglang"))


@pytest.fixture(scope="session")
def settings() -> SglangSettings:
    """Settings of a server on this machine."""
    return SglangSettings(
        python=str(PYTHON),
        concurrency=8,
        arguments=ARGUMENTS,
        environment=ENVIRONMENT,
        start_timeout_s=600,
        request_timeout_s=300,
        restarts=4,
    )


@pytest.fixture(autouse=True)
def sglang_environment(settings: SglangSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workflow leaves in the environment of a job."""
    monkeypatch.delenv(URLS, raising=False)
    monkeypatch.setenv("AERIE_SGLANG", settings.as_json())


@pytest.fixture(scope="session")
def tiny_deepseek(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A random DeepSeek-V3 of 8 layers with MLA and 8 experts, the family of Kimi-K2.5."""
    from tests.sglang.deepseek import build_tiny_deepseek

    return build_tiny_deepseek(tmp_path_factory.mktemp("deepseek"))


@pytest.fixture(scope="session")
def raised_yarn(tmp_path_factory: pytest.TempPathFactory) -> Raised:
    """A draft that learnt the answers of a tiny target with YaRN, which Kimi-K2.5 has too."""
    folder = tmp_path_factory.mktemp("yarn")
    rope = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 8, "beta_slow": 1,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    save_tiny_checkpoint(folder / "checkpoint", rope)
    source = PathSource(path=str(folder / "checkpoint"))
    settings = TargetSettings(name="tiny-yarn", source=source, dtype="float32")
    target = build_target(settings, folder / "target")
    made = raise_draft(folder, target, QUESTIONS, 40, VOCAB)
    made.train(folder)
    return made


@pytest.fixture(scope="session")
def raised_smollm(tmp_path_factory: pytest.TempPathFactory, target: Target) -> Raised:
    """The same for SmolLM2-135M: eighteen short answers, learnt nearly by heart."""
    folder = tmp_path_factory.mktemp("smollm")
    vocab = VocabSettings(size=512, floor=0.5, dataset_floor=0.5)
    made = raise_draft(folder, target, QUESTIONS[:18], 24, vocab)
    made.train(folder, SETTINGS.model_copy(update={"epochs": 25, "learning_rate": 0.002}))
    return made
