"""Stands between a server and its owner: no process of a server outlives either of them.

`python -m aerie.engines.sglang.guard COMMAND...` runs COMMAND in a process group of its own. When
COMMAND ends, or standard input does (its owner closed it, or was killed), the whole group is ended:
politely, and after a while by force. SGLang's processes watch their parent too, but only once they
have finished importing. Imports nothing but what is in Python.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from aerie.processes import die_with_parent

_POLL_S = 0.5
_POLITE_S = 15.0


def main(command: list[str]) -> int:
    """Run `command` until it or the owner ends; the exit status as a shell would give it."""
    # Only the owner's end of the pipe, or its kill, ends the guard.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_prepare
    ) as server:
        while server.poll() is None and not _owner_left():
            pass
        _end_group(server)
        status = server.wait()
    return status if status >= 0 else 128 - status


def _prepare() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()


def _owner_left() -> bool:
    ready, _, _ = select.select([0], [], [], _POLL_S)
    return bool(ready) and not os.read(0, 1)


def _end_group(server: "subprocess.Popen[bytes]") -> None:
    for number, seconds in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _POLITE_S)):
        deadline = time.monotonic() + seconds
        if not _signal(server.pid, number):
            return
        while time.monotonic() < deadline:
            server.poll()
            if not _is_alive(server.pid):
                return
            time.sleep(0.1)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _is_alive(group: int) -> bool:
    """Whether a process of the group still runs.

    A container's first process often reaps no orphans, and a signal reaches zombies too.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may hold anything; state, parent and group follow it.
            state, _, owner = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(owner) == group and state not in "ZX":
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
