"""Runs scripts in children of a process that has imported everything, and ends them on purpose.

A line of JSON on standard input is a run (`Order`), a line on standard output what became of it.
Importing torch takes seconds and a phase of the tiny build less, so that two hundred kills fit into
minutes. `python tests/faults/zygote.py` is started by `tests.faults.runs`.
"""

import json
import os
import runpy
import signal
import sys
import time
from typing import Any

# Events of Python's audit hooks by which a file comes, goes or changes its name.
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree",
            "os.link", "os.symlink", "os.chmod"}  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR


def preload() -> None:
    """Import what the scripts import, and start no thread."""
    import pyarrow.parquet
    import torch
    import transformers

    torch.set_num_threads(1)
    assert pyarrow.parquet and transformers


class Counter:
    """Counts the file events of this process and kills it before the one that is asked for."""

    def __init__(self, deadly: int | None) -> None:
        self.seen, self._deadly, self._pid = 0, deadly, os.getpid()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if os.getpid() != self._pid:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        if event in _CHANGES or writes:
            self.seen += 1
            if self.seen == self._deadly:
                os.killpg(0, signal.SIGKILL)


def child(order: dict[str, Any]) -> None:
    """Run the script of an order; never returns."""
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(order["folder"])
    if order["jumps"]:
        jump_about(order["jumps"])
    counter = Counter(order["event"])
    sys.addaudithook(counter)
    sys.argv = list(order["arguments"])
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    with open(order["log"] + ".events", "w") as stream:
        stream.write(str(counter.seen))
    os._exit(code)


def jump_about(seed: int) -> None:
    """Make the clock of the wall jump by up to a year at each look; the steady one goes on."""
    import random

    moments, real = random.Random(seed), time.time

    def jumping() -> float:
        return real() + moments.uniform(-3e7, 3e7)

    time.time = jumping
    time.time_ns = lambda: int(jumping() * 1e9)


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Start an order's script and wait for its end, its death, or the moment to kill it."""
    start = time.perf_counter()
    pid = os.fork()
    if not pid:
        child(order)
    limit = order["seconds"] if order["seconds"] is not None else order["limit"]
    killed = False
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.perf_counter() - start > limit and not killed:
            killed = True
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                # It has not called setsid yet.
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.perf_counter() - start,
        "hung": killed and order["seconds"] is None,
    }


def main() -> None:
    preload()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
