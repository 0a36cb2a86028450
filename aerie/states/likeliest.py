"""Where the codec `teacher` computes: the target's head times every final state of a build."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

log = logging.getLogger("aerie")

# Logits of a chunk, what `topk` takes beside them, and the context of CUDA itself.
_ROOM = 2 << 30


def placed(head: "torch.Tensor") -> "torch.Tensor":
    """`head` [V, H] on a GPU if there is one with room for it beside a server, else as it is.

    The last GPU is taken: the buffers of a capture are on the first.
    """
    import torch

    if not torch.cuda.is_available():
        return head
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    free, _ = torch.cuda.mem_get_info(device)
    needed = head.nbytes + _ROOM
    if free < needed:
        log.warning(
            "%s has %.1f GB free, the codec `teacher` takes %.1f: it computes on the CPU, slowly; "
            "lower `sglang.memory_share`", device, free / 1e9, needed / 1e9,
        )  # fmt: skip
        return head
    return head.to(device)
