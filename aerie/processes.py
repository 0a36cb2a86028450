"""Processes that must not outlive the one that started them, and those that go on later."""

import ctypes
import os
import signal
import sys

# sysexits.h's EX_TEMPFAIL: come back later. `sbatch --requeue` and a workflow's retry both may.
REQUEUE = 75

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    A pool's workers wait for work for ever once their parent was killed. Linux only; elsewhere
    nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the kernel was told.
    if os.getppid() != parent:
        os._exit(1)
