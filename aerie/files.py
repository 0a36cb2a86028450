"""Files that appear whole or not at all, and the digests that name their content."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from aerie.errors import ContractError

_CHUNK_BYTES = 1 << 20
_SEAL = "xxh3"


def fsync_directory(directory: Path) -> None:
    """Make renames inside `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on a clean exit it is fsynced and renamed over `path`.

    On an exception the scratch file is removed and `path` is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    scratch = Path(name)
    try:
        yield scratch
        # mkstemp makes the file private to its owner; artifacts are for the whole team.
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
        fsync_directory(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def saving_tensors(path: Path) -> Iterator[None]:
    """Around a call that has safetensors write to `path`.

    Raises:
        OSError: the system refused. safetensors has an error of its own for that, which would not
            be known for a full disk.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if code := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        raise


def canonical_json(value: Any) -> str:
    """`value` as JSON that is equal for equal content: sorted keys, no NaN, UTF-8 kept."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` whole or not at all, sorted and indented for people."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=2)
    with replacing(path) as scratch:
        scratch.write_text(text + "\n", encoding="utf-8")


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON artifact with the digest of its own content, which `read_json` checks."""
    # As it will be read: keys are texts then, and tuples lists.
    read = json.loads(canonical_json(content))
    write_json(path, {**read, _SEAL: digest_json(read)})


def read_json(path: Path) -> Any:
    """Read a JSON artifact. The digest of one that was written sealed is checked, and left out.

    Raises:
        ContractError: the file is missing, is not JSON, or changed since it was written.
    """
    content = _json(path)
    if not isinstance(content, dict) or _SEAL not in content:
        return content
    expected, saw = content.pop(_SEAL), digest_json(content)
    if saw != expected:
        raise ContractError(
            f"{path} changed since it was written",
            saw=f"content of digest {saw}",
            expected=expected,
            remedy=f"remove {path} and run the build again: it makes what is missing",
        )
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ContractError(
            f"{path} is missing", remedy="run the build again: it makes what is missing"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ContractError(
            f"{path} is not JSON",
            saw=error,
            remedy=f"remove {path} and run the build again: it makes what is missing",
        ) from error


def is_inside(name: str) -> bool:
    """Whether a relative path stays inside the folder that it is joined to."""
    parts = PurePosixPath(name).parts
    return bool(parts) and name[0] != "/" and ".." not in parts and "\0" not in name


def digest_bytes(*parts: bytes) -> str:
    """xxh3-128 of the parts joined, as 32 hexadecimal digits."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def digest_json(value: Any) -> str:
    """xxh3-128 of `canonical_json(value)`, as 32 hexadecimal digits."""
    return digest_bytes(canonical_json(value).encode("utf-8", "surrogatepass"))


def digest_file(path: Path) -> str:
    """xxh3-128 of a file's bytes, as 32 hexadecimal digits."""
    state = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()
