"""The products of the layer's activations with its weights: in their own type, or in fp8."""

import torch
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.errors import ConfigError
from aerie.train.ops.interface import operations
from aerie.train.weights import Matrices

_MULTIPLE = 16
_CAPABILITY = (9, 0)


class Products:
    """Products with `qkv_hidden`, `o`, `gate_up` and `down` of the weights, by these names."""

    def __init__(self, weights: Matrices) -> None:
        self._weights = weights

    def forward(self, name: str, x: Tensor, out: Tensor, base: Tensor | None = None) -> Tensor:
        """x @ weight.t(), plus `base`, into `out`."""
        weight = self._weight(name).t()
        if base is None:
            return torch.mm(x, weight, out=out)
        return torch.addmm(base, x, weight, out=out)

    def backward(self, name: str, grad: Tensor, out: Tensor | None = None) -> Tensor:
        """grad @ weight, into `out` if it is given."""
        return torch.mm(grad, self._weight(name), out=out)

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = getattr(self._weights, name)
        return weight


class Float8(Products):
    """The same in e4m3 with a scale for each row of either side, made from its largest element.

    Sums are float32, results have the type of the weights. The gradients of the weights, the head,
    and what is multiplied once (`fc`, the embedding's half) are not in fp8. It is the recipe that
    torchao calls `rowwise_with_gw_hp`. Each weight is converted once a pack, for each direction.
    """

    def __init__(self, weights: Matrices) -> None:
        super().__init__(weights)
        self._ops = operations(weights.norm_out)
        self._rows: dict[str, tuple[Tensor, Tensor]] = {}
        self._columns: dict[str, tuple[Tensor, Tensor]] = {}

    def forward(self, name: str, x: Tensor, out: Tensor, base: Tensor | None = None) -> Tensor:
        if name not in self._rows:
            self._rows[name] = self._ops.quantise(self._weight(name))
        self._multiply(x, self._rows[name], out)
        return out if base is None else out.add_(base)

    def backward(self, name: str, grad: Tensor, out: Tensor | None = None) -> Tensor:
        if name not in self._columns:
            self._columns[name] = self._ops.quantise(self._weight(name).t().contiguous())
        right = self._columns[name]
        if out is None:
            out = grad.new_empty(len(grad), len(right[0]))
        return self._multiply(grad, right, out)

    def _multiply(self, x: Tensor, right: tuple[Tensor, Tensor], out: Tensor) -> Tensor:
        left, scale = self._ops.quantise(x)
        product: Tensor = torch._scaled_mm(
            left, right[0].t(), scale_a=scale, scale_b=right[1].t(), out_dtype=out.dtype,
            # The row-wise kernels are slow without it.
            use_fast_accum=True, out=out,
        )  # fmt: skip
        return product


def products_of(weights: Matrices, fp8: bool) -> Products:
    """The products of one pack; those in fp8 hold for as long as the weights are not changed."""
    return Float8(weights) if fp8 else Products(weights)


def check_fp8(config: DraftConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Check that a draft can be trained with fp8 products here; a CPU can, slowly.

    Raises:
        ConfigError: the GPU, the draft's widths or its `dtype` allow none.
    """
    widths = (config.hidden_size, config.intermediate_size, config.heads * config.head_dim)
    saw = expected = None
    if dtype != torch.bfloat16:
        saw, expected = f"dtype {str(dtype).removeprefix('torch.')}", "bfloat16"
    elif any(width % _MULTIPLE for width in widths):
        saw, expected = f"widths {widths}", f"multiples of {_MULTIPLE}"
    elif device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
        saw = torch.cuda.get_device_name(device)
        expected = "compute capability 9.0 or above (H100, H200, B200)"
    if saw:
        raise ConfigError(
            "fp8 products are not possible here",
            saw=saw,
            expected=expected,
            remedy="set `fp8: false` for the draft",
        )
