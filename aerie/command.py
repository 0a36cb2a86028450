"""What every script shares: one parser style, one log, errors that a person can read."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from aerie.errors import AerieError
from aerie.progress import console

log = logging.getLogger("aerie")


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all scripts take."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    result.add_argument("--log", type=Path, help="also write messages and tracebacks here")
    result.add_argument("--threads", type=int, default=1, help="threads for tensor work")
    return result


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.ArgumentParser) -> None:
    """Parse the command line, set up the log and call `main`; exit 1 with a readable error.

    An `AerieError` is printed as it reads; any other exception keeps its traceback, since it is a
    fault of Aerie's own.
    """
    options = arguments.parse_args()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(options.log, mode="w", encoding="utf-8"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers, force=True)
    for noisy in ("transformers", "datasets", "urllib3", "filelock", "fsspec"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.excepthook = _unexpected
    try:
        main(options)
    except AerieError as error:
        log.error("%s", error)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted; run the same command again to continue")
        sys.exit(130)


def _unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    log.critical(
        "unexpected: this is a fault of Aerie, please report it with this log",
        exc_info=(kind, error, trace),
    )
