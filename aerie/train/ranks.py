"""Data parallelism: one process a GPU, started by torchrun; alone without it.

Every rank holds the whole draft (24 GiB at Kimi-K2.5's size with its optimizer) and takes its
packs of each step. The gradients are summed, so all ranks take the same step.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from aerie.errors import ConfigError
from aerie.progress import console


@dataclass(frozen=True)
class Ranks:
    """This process among all: `rank` of `world`, and its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)

    def gather(self, mine: Any) -> list[Any]:
        """What every rank has, in their order."""
        if self.world == 1:
            return [mine]
        everything: list[Any] = [None] * self.world
        dist.all_gather_object(everything, mine)
        return everything

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()


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
