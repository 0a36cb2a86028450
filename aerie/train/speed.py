"""How fast a run goes, against the rate of products that was measured on its own device."""

import time

import torch

# Large enough that the matrix units are full and the launch costs nothing; a CPU needs far less.
_SIZE = {"cuda": 8192, "cpu": 1024}
_REPEATS = {"cuda": 10, "cpu": 1}
_TRIES = 4


def matrix_rate(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a large square product on `device`, the fastest of a few tries.

    Takes about 0.1 s on a GPU and on a CPU.
    """
    size, repeats = _SIZE[device.type], _REPEATS[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = []
    for _ in range(1 + _TRIES):
        start = _now(device)
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        seconds.append(_now(device) - start)
    return 2 * size**3 * repeats / min(seconds[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Speed:
    """Counts the work between two readings. `rate` is the matrix rate of all devices, FLOP/s."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.restart(0.0)

    def restart(self, waited: float) -> None:
        """Begin anew, after work that is no step; `waited` is the loader's own count, seconds."""
        self._since, self._waited = time.perf_counter(), waited
        self._tokens = self._flops = 0

    def add(self, tokens: int, flops: int) -> None:
        """Count one step."""
        self._tokens += tokens
        self._flops += flops

    def read(self, waited: float) -> dict[str, float]:
        """Tokens a second, MFU and the share of the time that was spent waiting for data.

        Right only when the device has done what was counted: after its figures were read.
        """
        seconds = max(time.perf_counter() - self._since, 1e-9)
        figures = {
            "tokens_per_s": self._tokens / seconds,
            "mfu": self._flops / seconds / self.rate,
            "waiting_share": (waited - self._waited) / seconds,
        }
        self.restart(waited)
        return figures
