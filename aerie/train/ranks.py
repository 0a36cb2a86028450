"""Data parallelism: one process a GPU, started by torchrun; alone without it.

Every rank takes its packs of each step. The gradients are summed, so all ranks take the same step;
`layout` says what each of them holds.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from aerie.errors import ConfigError
from aerie.progress import console


class Work(Protocol):
    """What goes on between the ranks."""

    def wait(self) -> object:
        """Let whatever is computed from here on come after it; on a GPU the host does not wait."""


# Torch 2.13 has new names for both, and warns at each call of the old ones, which 2.11 has.
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


@dataclass(frozen=True)
class Ranks:
    """This process among all: `rank` of `world`, and its device. `group`: default, all."""

    rank: int
    world: int
    device: torch.device
    group: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, group=self.group)

    def begin_scatter(self, mine: Tensor, whole: Tensor) -> Work:
        """Begin to put this rank's part of the sum of `whole` over all ranks into `mine`.

        `whole` is flat and has one part of the size of `mine` for each rank.
        """
        work: Work = _reduce_scatter(mine, whole, group=self.group, async_op=True)
        return work

    def begin_gather(self, whole: Tensor, mine: Tensor) -> Work:
        """Begin to put the `mine` of all ranks into `whole`, in their order."""
        work: Work = _all_gather(whole, mine, group=self.group, async_op=True)
        return work

    def gather(self, mine: Any) -> list[Any]:
        """What every rank has, in their order."""
        if self.world == 1:
            return [mine]
        everything: list[Any] = [None] * self.world
        dist.all_gather_object(everything, mine, group=self.group)
        return everything

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier(self.group)


def share_threads(threads: int) -> None:
    """Give this process its share of the host's `threads` for tensor work."""
    torch.set_num_threads(max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


@contextmanager
def join() -> Iterator[Ranks]:
    """This process's place as torchrun says, and its device: CUDA where there is one.

    Raises:
        ConfigError: there are more processes on this host than GPUs.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        _check_gpus(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if rank:
        console.quiet = True
        logging.getLogger("aerie").setLevel(logging.WARNING)
    try:
        yield Ranks(rank, world, device)
    finally:
        dist.destroy_process_group()


def _check_gpus(present: int, wanted: int) -> None:
    if wanted > present:
        raise ConfigError(
            "the draft is to train on more GPUs than this job has",
            saw=f"{present}",
            expected=f"{wanted} (`gpus` of the draft)",
            remedy="lower `gpus`, or give the job more: `make all GPUS=...`, and on a cluster "
            "`gpu` of the rule `draft` in the profile",
        )
