"""What each rank holds of weights, gradient and optimizer (`sharding` of a draft).

`none`: everything. The gradients are summed once, after the last pack of a step.

`optimizer`: each rank has a shard of the float32 weights and the moments, and updates that. Weights
and gradient in the products' dtype are whole everywhere. Part by part, a gradient is reduced to its
shards while the next part is computed, and new weights are gathered while the next step begins.

`full`: of weights and gradient, too, only shards last. A part of the weights is gathered after the
update and freed after its last use in a pack; a part of the gradient exists from its product until
it is reduced. The layer's parts are used by every training-time-test step, forward and backward,
so they stay for the whole pack: to gather them at each use would be 14 times the traffic.

FSDP2 (`fully_shard`) cannot hold this step. It gathers in the hooks of a module's forward pass and
reduces in those of autograd, and the step has neither: its backward pass is written out, and makes
a weight's gradient once, over all steps. What FSDP2 does then remains: flat parts, all-gather,
reduce-scatter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from aerie.contracts.draft import DraftConfig
from aerie.errors import ConfigError
from aerie.train.optimizer import AdamW
from aerie.train.ranks import Ranks, Work
from aerie.train.weights import ALIGNMENT, Matrices, Weights, spans

if TYPE_CHECKING:
    # A section of the configuration, whose package a bare machine that measures lacks.
    from aerie.train.settings import DraftSettings


class Layout(Protocol):
    """What a training step works on, and how it is saved."""

    @property
    def weights(self) -> Matrices:
        """In the products' dtype."""

    @property
    def gradient(self) -> Matrices:
        """What a pack's gradient is written into."""

    @property
    def optimizer(self) -> AdamW:
        """Of all weights, or of this rank's share."""

    @property
    def exchanges(self) -> bool:
        """Whether ranks exchange data while they compute: all take the same number of packs."""

    def reduced(self) -> Tensor:
        """The gradient of the last pack, as far as this rank updates it; flat."""

    def sum_(self, total: Tensor) -> None:
        """Make `total`, what all packs of this rank gave, the sum over all ranks."""

    def updated(self) -> None:
        """The optimizer has taken a step."""

    def whole(self) -> None:
        """Make `weights` whole until the next step; all ranks call it."""

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments, flat and whole; empty on ranks that write no files. All call it."""

    def restore(self, file: Path) -> None:
        """Read what `tensors` gave, whatever layout and number of ranks wrote it."""


def new_layout(settings: "DraftSettings", master: Weights, ranks: Ranks) -> Layout:
    """The layout that `settings` asks for, with new moments; `master` is float32 and whole.

    Raises:
        ConfigError: a part cannot be divided by this number of ranks.
    """
    if settings.sharding == "none" or ranks.world == 1:
        return Replicated(settings, master, ranks)
    if ALIGNMENT % ranks.world:
        raise ConfigError(
            "the draft cannot be sharded over this number of ranks",
            saw=f"{ranks.world}",
            expected=f"a divisor of {ALIGNMENT}: 2, 4, 8, 16, ...",
            remedy="change `gpus`, or set `sharding: none` for the draft",
        )
    return Sharded(settings, master, ranks, frees=settings.sharding == "full")


class Replicated:
    """Everything on each rank."""

    exchanges = False

    def __init__(self, settings: "DraftSettings", master: Weights, ranks: Ranks) -> None:
        config, dtype = master.config, getattr(torch, settings.dtype)
        # Products in float32 multiply the master itself.
        self.weights = Weights(config, master.flat.to(dtype))
        self.gradient = Weights.zeros(config, dtype, ranks.device)
        self.optimizer = AdamW(
            master.flat, self.weights.flat, settings.betas, settings.weight_decay, settings.clip
        )
        self._ranks = ranks

    def reduced(self) -> Tensor:
        return self.gradient.flat

    def sum_(self, total: Tensor) -> None:
        self._ranks.sum_(total)

    def updated(self) -> None:
        pass

    def whole(self) -> None:
        pass

    def tensors(self) -> dict[str, Tensor]:
        return self.optimizer.state() if self._ranks.leads else {}

    def restore(self, file: Path) -> None:
        everything = slice(0, len(self.optimizer.master))
        _read(file, self.optimizer, {everything.start: everything})


@dataclass(frozen=True)
class _Sharding:
    """`places` are the parts' pieces in a shard; `frees`: parts are freed when not in use."""

    config: DraftConfig
    ranks: Ranks
    places: dict[str, slice]
    frees: bool


class Sharded:
    """Rank r has the r-th of `world` equal pieces of each part; a shard is its pieces of all."""

    exchanges = True

    def __init__(
        self, settings: "DraftSettings", master: Weights, ranks: Ranks, frees: bool
    ) -> None:
        places = _places(master.config, ranks.world)
        self._sharding = _Sharding(master.config, ranks, places, frees)
        pieces = [part.chunk(ranks.world)[ranks.rank] for part in master.parts.values()]
        shard = torch.cat(pieces)
        products = shard.to(getattr(torch, settings.dtype))
        self.optimizer = AdamW(
            shard, products, settings.betas, settings.weight_decay, settings.clip, ranks.sum_
        )
        self.weights = _Gathered(products, self._sharding)
        self.gradient = _Scattered(torch.zeros_like(products), self._sharding)

    def reduced(self) -> Tensor:
        self.gradient.settle()
        return self.gradient.shard

    def sum_(self, total: Tensor) -> None:
        pass

    def updated(self) -> None:
        self.weights.refresh()

    def whole(self) -> None:
        self.weights.hold()

    def tensors(self) -> dict[str, Tensor]:
        found = {
            name: self._joined(tensor) if tensor.dim() else tensor
            for name, tensor in self.optimizer.state().items()
        }
        return found if self._sharding.ranks.leads else {}

    def restore(self, file: Path) -> None:
        ranks, pieces = self._sharding.ranks, {}
        for place in self._sharding.places.values():
            start = place.start * ranks.world + ranks.rank * (place.stop - place.start)
            pieces[start] = place
        _read(file, self.optimizer, pieces)

    def _joined(self, shard: Tensor) -> Tensor:
        """The whole of a shard, in memory of the CPU, on the rank that leads."""
        ranks, whole = self._sharding.ranks, []
        for place in self._sharding.places.values():
            part = shard.new_empty((place.stop - place.start) * ranks.world)
            ranks.begin_gather(part, shard[place]).wait()
            if ranks.leads:
                whole.append(part.cpu())
        return torch.cat(whole) if whole else shard


class _Own(Matrices):
    """Matrices whose parts have memory of their own, which can be given back and taken again."""

    def __init__(self, shard: Tensor, sharding: _Sharding) -> None:
        world = sharding.ranks.world
        parts = {
            name: shard.new_zeros((place.stop - place.start) * world)
            for name, place in sharding.places.items()
        }
        super().__init__(sharding.config, parts)
        self.shard, self.sharding = shard, sharding
        self._bytes = {name: part.untyped_storage().nbytes() for name, part in parts.items()}
        for name in parts:
            self._free(name)

    def _take(self, name: str) -> bool:
        """Take the part's memory; whether it was taken anew."""
        storage = self.parts[name].untyped_storage()
        anew = not storage.nbytes()
        if anew:
            storage.resize_(self._bytes[name])
        return anew

    def _free(self, name: str) -> None:
        if self.sharding.frees:
            self.parts[name].untyped_storage().resize_(0)


class _Gathered(_Own):
    """Weights: gathered after each update, in the order of their use, and waited for there."""

    def __init__(self, shard: Tensor, sharding: _Sharding) -> None:
        super().__init__(shard, sharding)
        self._coming: dict[str, Work] = {}
        self._there: set[str] = set()
        self._held = False

    def refresh(self) -> None:
        """Begin to gather all parts anew."""
        self._held = False
        self._there.clear()
        for name in self.parts:
            self._begin(name)

    def hold(self) -> None:
        """Make all parts whole until the next refresh."""
        self.acquire(*self.parts)
        self._held = True

    def acquire(self, *parts: str) -> None:
        for name in parts:
            if name in self._there:
                continue
            if name not in self._coming:
                self._begin(name)
            self._coming.pop(name).wait()
            self._there.add(name)

    def release(self, *parts: str) -> None:
        if not self.sharding.frees or self._held:
            return
        for name in parts:
            self._there.discard(name)
            self._free(name)

    def _begin(self, name: str) -> None:
        self._take(name)
        mine = self.shard[self.sharding.places[name]]
        self._coming[name] = self.sharding.ranks.begin_gather(self.parts[name], mine)


class _Scattered(_Own):
    """Gradient: a part that is whole is summed into the shards while the next one is made."""

    def __init__(self, shard: Tensor, sharding: _Sharding) -> None:
        super().__init__(shard, sharding)
        self._going: dict[str, Work] = {}

    def acquire(self, *parts: str) -> None:
        for name in parts:
            if self._take(name):
                # Between the matrices may be gaps, which no product writes.
                self.parts[name].zero_()

    def release(self, *parts: str) -> None:
        self.settle()
        for name in parts:
            mine = self.shard[self.sharding.places[name]]
            self._going[name] = self.sharding.ranks.begin_scatter(mine, self.parts[name])

    def settle(self) -> None:
        """Wait for all that was sent, and free it."""
        for name, work in self._going.items():
            work.wait()
            self._free(name)
        self._going.clear()


def _places(config: DraftConfig, world: int) -> dict[str, slice]:
    """Where the piece of each part lies in a shard."""
    return {
        name: slice(span.start // world, span.stop // world) for name, span in spans(config).items()
    }


def _read(file: Path, optimizer: AdamW, pieces: Mapping[int, slice]) -> None:
    """Read pieces of flat tensors, by their start there, into slices of the optimizer's."""
    with safe_open(file, "pt") as saved:
        for name, tensor in optimizer.state().items():
            if not tensor.dim():
                tensor.copy_(saved.get_tensor(name))
                continue
            for start, place in pieces.items():
                size = place.stop - place.start
                tensor[place].copy_(saved.get_slice(name)[start : start + size])
    optimizer.products.copy_(optimizer.master)
