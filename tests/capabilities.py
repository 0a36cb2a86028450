"""What the kernel lets a test do, found out by doing it: a container of CI may be refused some."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Capability:
    """Something that a kernel may refuse; `command` fails where it does, and leaves nothing."""

    name: str
    command: tuple[str, ...]

    def refusal(self) -> str | None:
        """What the kernel said, or None where it is allowed."""
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"{said}: {shlex.join(self.command)}" if done.returncode else None


def _make_cgroup(root: str) -> str:
    """A command that makes a control group under `root` and removes it again."""
    folder = shlex.quote(f"{root}/aerie-probe-{os.getpid()}")
    return f"mkdir {folder} && rmdir {folder}"


_MOUNT = ("mount", "-t", "tmpfs", "tmpfs", "/mnt")
_CGROUPS = Path("/sys/fs/cgroup")
# Version 1 has a hierarchy for each controller, version 2 one for all.
_HIERARCHY = str(_CGROUPS if (_CGROUPS / "cgroup.controllers").exists() else _CGROUPS / "memory")

# The mounts are in a namespace that ends with the command.
MOUNTS = Capability("mounting (CAP_SYS_ADMIN)", ("unshare", "--mount", *_MOUNT))
USER_NAMESPACES = Capability(
    "user namespaces", ("unshare", "--user", "--map-root-user", "--mount", *_MOUNT)
)
CGROUPS = Capability("control groups", ("sh", "-c", _make_cgroup(_HIERARCHY)))


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A disk of so many bytes in memory at `folder`, which full disks are tried on.

    Only root may mount it, so that the test is skipped where the kernel refuses.
    """
    skip_unless_allowed(MOUNTS)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        # Lazy: the error that a test looked at still holds the file that it came from.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def skip_unless_allowed(*capabilities: Capability) -> None:
    """Skip the test, with the kernel's words, where one of `capabilities` is refused."""
    refused = [f"{one.name}: {said}" for one in capabilities if (said := one.refusal())]
    if refused:
        pytest.skip(f"the kernel refuses {'; '.join(refused)}")
