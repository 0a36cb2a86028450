"""States as vllm-project/speculators reads them (main @ c05b95b3).

`hidden_states/hs_<i>.safetensors` beside a dataset of Hugging Face that says what is supervised:
`src/speculators/train/data.py`, `ArrowDataset`, and `hs_connectors/transfer.py`, `FileTransfer`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.contracts.states import Sample, StatesFile
from aerie.errors import ContractError, DataError
from aerie.files import replacing, saving_tensors, write_json
from aerie.target import Target
from aerie.target_weights import read_norm

if TYPE_CHECKING:
    import torch

_ARROW = "data-00000-of-00001.arrow"
# What a norm without its scale gives is 1 but for roundings to bf16 and the norm's epsilon.
_UNIT_TOLERANCE = 0.02


class Speculators:
    """`hidden_states` bf16 [t, A+1, H], the captured layers and the final state *before* the norm,
    and `token_ids` int64 [t]. The dataset has `input_ids`, `loss_mask` and `seq_len`.

    Aerie keeps the final state after the norm, and speculators applies the norm itself (`models/
    eagle3/core.py`, `verifier_norm`). RMSNorm gives the same for any multiple of a state, so
    what is exported is `last` divided by the norm's scale: normed again it is `last`.

    Raises:
        DataError: no target is given.
    """

    def __init__(self, layers: Sequence[int], target: Target | None) -> None:
        if target is None:
            raise DataError(
                "speculators wants final states before the norm, and the norm is the target's",
                remedy="give --target target/target.json of the work folder",
            )
        self._layers, self._folder = len(layers), target.folder
        self._scale = read_norm(target).float()

    def path(self, number: int) -> Path:
        return Path("hidden_states", f"hs_{number}.safetensors")

    def write(self, sample: Sample, path: Path) -> None:
        """Write one sample.

        Raises:
            ContractError: the target's final norm is no RMSNorm with a plain scale.
        """
        import torch
        from safetensors.torch import save_file

        last = sample.final()
        length, hidden = last.shape
        aux = sample.aux.view(length, self._layers, hidden)
        states = torch.cat((aux, self._before_norm(last).unsqueeze(1)), dim=1)
        tensors = {"hidden_states": states, "token_ids": sample.token_ids.long()}
        with replacing(path) as scratch, saving_tensors(scratch):
            save_file(tensors, scratch)

    def finish(self, out: Path, files: Sequence[Path], digest: str) -> None:
        """Write the dataset of all samples, in the layout of `datasets.load_from_disk`."""
        _write_arrow(out / _ARROW, files)
        write_json(out / "dataset_info.json", {"features": _features(), "citation": ""})
        # Last: without it there is no dataset.
        write_json(
            out / "state.json",
            {
                "_data_files": [{"filename": _ARROW}],
                "_fingerprint": digest[:16],
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": "torch",
                "_output_all_columns": False,
                "_split": None,
            },
        )

    def _before_norm(self, last: "torch.Tensor") -> "torch.Tensor":
        state = last.float() / self._scale
        size = state.square().mean(dim=1).sqrt()
        # Also of NaN, which a scale of zero gives.
        if not bool(((size - 1).abs() < _UNIT_TOLERANCE).all()):
            raise ContractError(
                f"the final norm of {self._folder} is not known to speculators' export",
                saw=f"states that are {float(size.min()):.3g} to {float(size.max()):.3g} long "
                "without the norm's scale",
                expected="RMSNorm with a plain scale, which leaves 1",
                remedy="export for SpecForge, which takes states after the norm",
            )
        return state.bfloat16()


def _features() -> dict[str, Any]:
    value = {"dtype": "int64", "_type": "Value"}
    # Releases of `datasets` before 4 know no other name for a list, and later ones know this one.
    ids = {"feature": value, "length": -1, "_type": "Sequence"}
    return {"input_ids": ids, "loss_mask": ids, "seq_len": value}


def _write_arrow(path: Path, files: Sequence[Path]) -> None:
    import pyarrow as pa

    ids = pa.list_(pa.int64())
    schema = pa.schema(
        [("input_ids", ids), ("loss_mask", ids), ("seq_len", pa.int64())],
        {"huggingface": json.dumps({"info": {"features": _features()}})},
    )
    with replacing(path) as scratch, pa.ipc.new_stream(str(scratch), schema) as writer:
        for file in files:
            states = StatesFile(file)
            offsets = pa.array(states.offsets, pa.int32())
            columns = [
                pa.ListArray.from_arrays(offsets, states.column(name).long().numpy())
                for name in ("token_ids", "loss_mask")
            ]
            lengths = [b - a for a, b in zip(states.offsets, states.offsets[1:], strict=False)]
            writer.write_batch(
                pa.record_batch([*columns, pa.array(lengths, pa.int64())], schema=schema)
            )
