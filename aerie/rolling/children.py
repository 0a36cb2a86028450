"""The commands of a rolling run: a capture or a training is a process of its own.

So each has the GPUs to itself and gives all of their memory back.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from aerie.errors import AerieError
from aerie.processes import REQUEUE, die_with_parent


class Children:
    """Runs one command at a time. While entered, SIGTERM is passed on to it, and ends this process
    with `REQUEUE` once it has ended.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> "Children":
        self._before = signal.signal(signal.SIGTERM, self._pass_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def run(
        self, what: str, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Run a command to its end; `log` is where it writes what `what` meets.

        Raises:
            AerieError: it failed.
            SystemExit: this process was told to end.
        """
        if not self._asked:
            with subprocess.Popen(words, env=environment, preexec_fn=die_with_parent) as process:
                self._process = process
                # Told to end while it was started.
                if self._asked:
                    process.terminate()
                process.wait()
                self._process = None
            if process.returncode and not self._asked:
                raise AerieError(
                    f"{what} failed",
                    saw=f"exit status {process.returncode}",
                    remedy=f"see its own message above or in {log}, and run the build again: it "
                    "continues",
                )
        if self._asked:
            sys.exit(REQUEUE)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._process is not None:
            self._process.terminate()
