"""The disk gate: states fit before the first byte is written, or the build says what would."""

import shutil
from pathlib import Path
from typing import get_args

from aerie.contracts.codecs import Codec, Teacher
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
    teacher: Teacher | None = None,
    free: int | None = None,
) -> None:
    """Check that the states of `tokens` tokens fit where `folder` lies.

    `layers` counts the captured layers beside the final state; `teacher` says more of the codec of
    that name. `free` (default: asked of the file system) is in bytes.

    Raises:
        GateError: they do not fit; it lists the options and what each saves.
    """
    widths = (layers * hidden_size, hidden_size)
    each = token_bytes(*widths, codec, teacher)
    needed = tokens * each
    free = free_bytes(folder) if free is None else free
    if needed <= free:
        return
    fitting = free // each
    others = {name: tokens * token_bytes(*widths, name, teacher) for name in get_args(Codec)}
    smaller = "".join(
        f"    - `states.codec: {name}`: needs {other / _GB:,.1f} GB, saves "
        f"{(needed - other) / _GB:,.1f} GB{'' if other <= free else ', not enough alone'}\n"
        for name, other in others.items()
        if other < needed
    )
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
