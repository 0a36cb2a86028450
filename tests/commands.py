"""The command line as a person has it: another process, in this checkout."""

import subprocess
import sys
from pathlib import Path

from aerie.config import ROOT


def aerie(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run `aerie` to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, "-m", "aerie", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
