"""What every script shares: one parser style, one log, errors that a person can read."""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from aerie.errors import AerieError
from aerie.progress import console

log = logging.getLogger("aerie")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all scripts take."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    result.add_argument("--log", type=Path, help="also write messages and tracebacks here")
    result.add_argument("--threads", type=int, default=1, help="threads for tensor work")
    return result


def add_answers(arguments: argparse.ArgumentParser) -> None:
    """The options of a script that captures: whether the answers can be reproduced."""
    answers = arguments.add_mutually_exclusive_group(required=True)
    answers.add_argument(
        "--greedy", action="store_true", help="probe that the states reproduce the answers"
    )
    answers.add_argument(
        "--sampled", dest="greedy", action="store_false", help="the answers cannot be reproduced"
    )


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.ArgumentParser) -> None:
    """Parse the command line, set up the log and call `main`; exit 1 with a readable error.

    An `AerieError` is printed as it reads; any other exception keeps its traceback, since it is a
    fault of Aerie's own.
    """
    options = arguments.parse_args()
    sys.excepthook = _unexpected
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    # On a full disk the log cannot be written either, and its traceback would bury the message.
    logging.raiseExceptions = False
    try:
        _open_log(options.log)
        main(options)
    except AerieError as error:
        log.error("%s", error)
        sys.exit(1)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; Python must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno not in (*_FULL, *(_FORBIDDEN if error.filename else ())):
            raise
        log.error("%s", _full_disk(error) if error.errno in _FULL else _forbidden(error))
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted; run the same command again to continue")
        sys.exit(130)


def _open_log(path: Path | None) -> None:
    """Write messages and tracebacks to `path` too, and keep other libraries quiet."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The processes of torchrun share a log: one begins it, and all append.
        if os.environ.get("RANK", "0") == "0":
            path.write_text("", encoding="utf-8")
        logging.getLogger().addHandler(logging.FileHandler(path, encoding="utf-8"))
    # The last two would print every address, and those of the Hub's storage carry signatures.
    for noisy in (
        "transformers", "urllib3", "filelock", "fsspec", "huggingface_hub", "httpx2",
    ):  # fmt: skip
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _forbidden(error: OSError) -> AerieError:
    return AerieError(
        f"{error.filename} cannot be read or written",
        saw=error.strerror,
        remedy="give this user the right to it, or mount the disk for writing, and run the same "
        "command again: nothing that was finished is lost",
    )


def _full_disk(error: OSError) -> AerieError:
    return AerieError(
        "the disk is full" + (f": {error.filename} cannot be written" if error.filename else ""),
        saw=error.strerror,
        remedy="free space, or choose another `work` folder, and run the same command again: "
        "nothing that was finished is lost",
    )


def _unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    log.critical(
        "unexpected: this is a fault of Aerie, please report it with this log",
        exc_info=(kind, error, trace),
    )
