"""How often each token of the target is supervised in a dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.contracts.responses import RESPONSES
from aerie.contracts.sidecar import read_whole, write_sidecar
from aerie.contracts.vocab import Int64, write_counts
from aerie.errors import ContractError
from aerie.target import Target, read_target


def count_dataset(responses: Sequence[Path], target: Path, out: Path) -> None:
    """Count the supervised tokens of all parts of a dataset into `<out>.safetensors` and `out`.

    `responses` are the sidecars of the parts, `target` is target.json, `out` the sidecar of the
    counts, named after the dataset. Supervised are the output tokens, as in `loss_mask`.

    Raises:
        ContractError: a part is missing or damaged, or holds an id that the target does not have.
    """
    model = read_target(target)
    counts = np.zeros(model.vocab_size, dtype=np.int64)
    digests = {}
    for sidecar in responses:
        table = sidecar.with_suffix(".parquet")
        content = read_whole(sidecar, "responses", [table.name])
        digests[sidecar.stem] = content["files"][table.name]["xxh3"]
        counts += count_table(table, model)
    data = out.with_suffix(".safetensors")
    write_counts(data, counts)
    summary: dict[str, Any] = {
        "supervised": int(counts.sum()),
        "distinct": int(np.count_nonzero(counts)),
    }
    provenance = {"dataset": out.stem, "target": model.revision, "responses": digests}
    write_sidecar(out, "counts", [data], summary, provenance)


def count_table(table: Path, target: Target) -> Int64:
    """Supervised tokens of one table of responses by id, int64 [V].

    Raises:
        ContractError: the table is damaged or holds an id that the target does not have.
    """
    ids = _output_ids(table)
    if len(ids) and (ids.min() < 0 or ids.max() >= target.vocab_size):
        raise ContractError(
            f"{table} holds token ids that {target.name} does not have",
            saw=f"{ids.min()} to {ids.max()}",
            expected=f"0 to {target.vocab_size - 1}",
            remedy="the answers are of another target: remove the part and run the build again",
        )
    return np.bincount(ids, minlength=target.vocab_size).astype(np.int64, copy=False)


def _output_ids(table: Path) -> "np.typing.NDArray[np.int32]":
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # Not through `read_responses`: a Python list of every token would be most of the time.
    try:
        column = pq.read_table(table, schema=RESPONSES, columns=["output_ids"])["output_ids"]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ContractError(
            f"{table} is not a readable table of responses",
            saw=error,
            remedy="run `make verify ARGS=--repair`, then the build again",
        ) from error
    ids: np.typing.NDArray[np.int32] = pc.list_flatten(column).to_numpy()
    return ids
