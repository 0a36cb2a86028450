"""The disk gate: states fit before the first byte is written, or the build says what would."""

import shutil
from pathlib import Path

from aerie.contracts.codecs import Codec
from aerie.contracts.states import token_bytes
from aerie.errors import GateError

_GB = 1e9


def check_disk(
    folder: Path,
    tokens: int,
    layers: int,
    hidden_size: int,
    *,
    codec: Codec = "bf16",
    free: int | None = None,
) -> None:
    """Check that the states of `tokens` tokens fit where `folder` lies.

    `layers` counts the captured layers beside the final state. `free` (default: asked of the
    file system) is in bytes.

    Raises:
        GateError: they do not fit; it lists the options and what each saves.
    """
    each = token_bytes(layers * hidden_size, hidden_size, codec)
    needed = tokens * each
    free = free_bytes(folder) if free is None else free
    if needed <= free:
        return
    fitting = free // each
    fp8 = tokens * token_bytes(layers * hidden_size, hidden_size, "fp8")
    smaller = "" if codec == "fp8" else (
        f"    - `states.codec: fp8`: needs {fp8 / _GB:,.1f} GB, saves "
        f"{(needed - fp8) / _GB:,.1f} GB{'' if fp8 <= free else ', not enough alone'}\n"
    )  # fmt: skip
    raise GateError(
        "disk",
        f"the states do not fit into {folder}",
        saw=f"{free / _GB:,.1f} GB free",
        expected=f"{needed / _GB:,.1f} GB: {tokens:,} tokens of {each:,} bytes",
        remedy="one of\n"
        f"    - fewer tokens: {fitting:,} fit ({fitting / tokens:.0%}); lower the takes or "
        f"max_new_tokens, saves {(needed - fitting * each) / _GB:,.1f} GB\n"
        f"    - a larger disk: {(needed - free) / _GB:,.1f} GB more, or another `work` folder\n"
        f"{smaller}"
        "    - rolling capture: states of some parts at a time, captured anew in each epoch; "
        "`make plan` says which `rolling.budget_bytes` fits",
    )


def free_bytes(folder: Path) -> int:
    """Bytes that are free where `folder` lies or will lie."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free
