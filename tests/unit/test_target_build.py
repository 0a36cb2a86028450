"""The target as an artifact: whole, checked, and the same bytes every time."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import dynamic_module_utils

from aerie.config import PackageSource, PathSource, TargetSettings
from aerie.contracts.sidecar import damage
from aerie.errors import ConfigError, DataError
from aerie.target import Target, render
from aerie.target_build import build_target


def settings(path: Path) -> TargetSettings:
    return TargetSettings(name="tiny", source=PathSource(path=str(path)), dtype="float32")


def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "source"))


def test_target_says_what_phases_need(tiny_target: Target) -> None:
    assert (tiny_target.layers, tiny_target.hidden_size, tiny_target.vocab_size) == (8, 64, 512)
    assert tiny_target.end_token_ids == (2,)
    assert tiny_target.special_token_ids == (0, 1, 2)
    assert damage(tiny_target.folder / "target.json") == []
    tokenizer = tiny_target.tokenizer()
    ids = render(tokenizer, tiny_target, [{"role": "user", "content": "An eagle?"}], "instant")
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nAn eagle?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_two_builds_are_identical_and_stale_files_go(tiny_checkpoint: Path, tmp_path: Path) -> None:
    first = build_target(settings(tiny_checkpoint), tmp_path / "a")
    build_target(settings(tiny_checkpoint), tmp_path / "b")
    a, b = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "ab")
    assert a == b
    source = copy(tiny_checkpoint, tmp_path)
    (source / "added.json").write_text("{}")
    other = build_target(settings(source), tmp_path / "a")
    assert other.revision != first.revision
    build_target(settings(tiny_checkpoint), tmp_path / "a")
    assert {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()} == a


def test_source_is_not_changed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    before = {file.name: (file.read_bytes(), file.stat().st_mode) for file in source.iterdir()}
    build_target(settings(source), tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    after = {file.name: (file.read_bytes(), file.stat().st_mode) for file in source.iterdir()}
    assert before == after


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a checkpoint folder"):
        build_target(settings(tmp_path / "nowhere"), tmp_path / "out")
    assert not (tmp_path / "out" / "target.json").exists()


def test_missing_template(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    (source / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match="no chat template"):
        build_target(settings(source), tmp_path / "out")


def test_template_without_generation_prompt(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(DataError, match="does not open an answer"):
        build_target(settings(source), tmp_path / "out")


def test_missing_and_truncated_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        build_target(settings(source), tmp_path / "out")
    weights.unlink()
    with pytest.raises(DataError, match="weights are missing"):
        build_target(settings(source), tmp_path / "out")


def test_weights_that_are_not_finite(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = copy(tiny_checkpoint, tmp_path)
    weights = load_file(source / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"model\.norm\.weight holds values that are not finite"):
        build_target(settings(source), tmp_path / "out")


_CODE = '''
from pathlib import Path
from transformers import PreTrainedTokenizer

Path(__file__).with_name("it-ran").touch()

class BytesTokenizer(PreTrainedTokenizer):
    """Every byte is a token."""

    vocab_files_names = {"vocab_file": "bytes.model"}

    def __init__(self, vocab_file=None, **more):
        super().__init__(**more)

    @property
    def vocab_size(self):
        return 256

    def get_vocab(self):
        return {f"{i:02x}": i for i in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text, **more):
        return [f"{byte:02x}" for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return int(token, 16)

    def _convert_id_to_token(self, number):
        return f"{number:02x}"

    def convert_tokens_to_string(self, tokens):
        return bytes(int(token, 16) for token in tokens).decode(errors="replace")

    def save_vocabulary(self, folder, filename_prefix=None):
        return ()
'''


@pytest.fixture
def with_code(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint whose tokenizer is code, as Kimi-K2.5's is."""
    source = copy(tiny_checkpoint, tmp_path)
    (source / "tokenizer.json").unlink()
    (source / "tokenization_bytes.py").write_text(_CODE, encoding="utf-8")
    (source / "bytes.model").write_bytes(b"")
    content = {
        "tokenizer_class": "BytesTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_bytes.BytesTokenizer", None]},
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {"256": {"content": "<|im_end|>", "special": True}},
    }
    (source / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
    return source


def test_a_tokenizer_that_is_code_runs_only_if_it_may(
    with_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
    with pytest.raises(ConfigError, match="it may not run"):
        build_target(settings(with_code), tmp_path / "out")
    assert not list(tmp_path.rglob("it-ran"))
    allowed = settings(with_code).model_copy(update={"trust_remote_code": True})
    target = build_target(allowed, tmp_path / "out")
    assert list(modules.rglob("it-ran"))
    assert target.trust_remote_code and target.special_token_ids == (256,)
    text = "An eagle\N{EAGLE}"
    tokenizer = target.tokenizer()
    assert tokenizer.encode(text, add_special_tokens=False) == list(text.encode())


def test_a_rope_that_no_draft_can_have_is_refused_at_once(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 512,
    }  # fmt: skip
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rope_type 'llama3' in the target's config\.json"):
        build_target(settings(source), tmp_path / "out")
    assert not (tmp_path / "out/target.json").exists()


def test_vocabulary_sizes_that_disagree(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = copy(tiny_checkpoint, tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": 500}))
    with pytest.raises(DataError, match="the embedding and config"):
        build_target(settings(source), tmp_path / "out")


def package(**changes: str) -> TargetSettings:
    source = {
        "package": "packaging-of-nothing",
        "version": "1.0",
        "file": "model.gguf",
        "sha256": "0" * 64,
    }
    return TargetSettings(name="x", source=PackageSource(**{**source, **changes}))


def test_package_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pip install packaging-of-nothing==1") as error:
        build_target(package(), tmp_path)
    assert "is not installed" in str(error.value)


def fake_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "nest-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nest\nVersion: 0.1\n")
    (info / "RECORD").write_text("nest/model.gguf,,\nnest-0.1.dist-info/METADATA,,\n")
    (folder / "nest").mkdir()
    (folder / "nest" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(folder))


def test_package_of_another_version_file_or_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package(tmp_path / "site", monkeypatch)
    out = tmp_path / "out"
    with pytest.raises(DataError, match="in another version"):
        build_target(package(package="nest", version="0.2"), out)
    with pytest.raises(DataError, match=r"holds no file other\.gguf"):
        build_target(package(package="nest", version="0.1", file="other.gguf"), out)
    with pytest.raises(DataError, match="is not the file that the configuration names") as error:
        build_target(package(package="nest", version="0.1"), out)
    assert "saw:      sha256 " in str(error.value)
    assert f"sha256 {'0' * 64}" in str(error.value)
