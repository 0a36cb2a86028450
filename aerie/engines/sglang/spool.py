"""The spool: where a capture server leaves the states of each request, and a job takes them.

One folder for each start of a server, in shared memory where there is some. Inside it each job has
a folder of its own. A request is named `aerie.<job>.<number>.<tokens>`; its states become the file
`<job>/<number>` once all of its rows are there: token ids int32 [t], aux bf16 [t, A*H] and last
bf16 [t, H], back to back. The server needs this module too: it imports nothing but what is in
Python, and torch when rows are read.
"""

import fcntl
import json
import mmap
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aerie.engines.sglang.versions import numbers
from aerie.errors import EngineError

if TYPE_CHECKING:
    import torch

VARIABLE = "AERIE_CAPTURE"
PLUGIN = "aerie"
FORMAT = 1
# The first SGLang that has `--enable-return-aux-hidden-states`.
_OWN_CAPTURE = (0, 5, 23)
_ID_BYTES, _STATE_BYTES = 4, 2
_NAME = re.compile(r"aerie\.(?P<job>[\w-]+)\.(?P<number>\d+)\.(?P<tokens>\d+)")
_ROOT = Path(__file__).resolve().parents[3]
_ENTRY_POINT = Path(__file__).resolve().parent / "entry_point"


@dataclass(frozen=True)
class RequestName:
    """The id of one request: whose it is, and how many rows it must have."""

    job: str
    number: int
    tokens: int

    def __str__(self) -> str:
        return f"aerie.{self.job}.{self.number}.{self.tokens}"

    @classmethod
    def parse(cls, text: str) -> "RequestName | None":
        """The name that `text` is, or None for a request that is not Aerie's."""
        found = _NAME.fullmatch(text)
        return cls(found["job"], int(found["number"]), int(found["tokens"])) if found else None


@dataclass(frozen=True)
class Spool:
    """A spool and what is captured into it.

    `hf_hidden_states` are the layers as indices into transformers' `output_hidden_states`. Whoever
    made the folder holds its lock, so that the next one can clear away what was left.
    """

    folder: Path
    hf_hidden_states: tuple[int, ...]
    hidden_size: int
    lock: int | None = field(default=None, compare=False, repr=False)

    @classmethod
    def create(
        cls, parent: Path | None, hf_hidden_states: tuple[int, ...], hidden_size: int
    ) -> "Spool":
        """A spool in a fresh folder below `parent`; default: shared memory, else temporary files.

        Raises:
            EngineError: the folder cannot be made.
        """
        memory = Path("/dev/shm")
        place = parent or (memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir()))
        try:
            place.mkdir(parents=True, exist_ok=True)
            folder, lock = _new_folder(place, "aerie-spool-")
        except OSError as error:
            raise EngineError(
                f"no spool can be made in {place}", saw=error, remedy="set `sglang.spool`"
            ) from error
        return cls(folder, hf_hidden_states, hidden_size, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it. Called once, by its maker."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)

    @property
    def aux_width(self) -> int:
        """Width of a row of the concatenated layers."""
        return len(self.hf_hidden_states) * self.hidden_size

    @property
    def sglang_config(self) -> tuple[int, ...]:
        """The layers as a draft's config.json says them; docs/states.md has both conventions."""
        return tuple(layer - 1 for layer in self.hf_hidden_states)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token: its id and its states."""
        return _ID_BYTES + _STATE_BYTES * (self.aux_width + self.hidden_size)

    def starts(self, tokens: int) -> tuple[int, int, int]:
        """Where ids, aux and last begin in the file of a request of `tokens` tokens."""
        aux = _ID_BYTES * tokens
        return 0, aux, aux + _STATE_BYTES * self.aux_width * tokens

    # The server's side

    def variables(self) -> dict[str, str]:
        """The environment that leads a job, and the server itself, to this spool."""
        content = {
            "folder": str(self.folder),
            "hf_hidden_states": self.hf_hidden_states,
            "hidden_size": self.hidden_size,
        }
        return {VARIABLE: json.dumps(content)}

    @staticmethod
    def paths() -> list[str]:
        """Folders of a server's PYTHONPATH: Aerie itself, and what names its plugins.

        SGLang finds plugins by importlib.metadata, which looks for dist-info folders in PYTHONPATH:
        nothing has to be installed.
        """
        return [str(_ROOT), str(_ENTRY_POINT)]

    def arguments(self, version: str) -> list[str]:
        """Arguments of a capture server of SGLang `version`.

        A row that comes from the prefix cache is computed by no forward, and what a CUDA graph
        replays calls no plugin. 0.5.23 names the layers itself; the plugin checks them.
        """
        arguments = ["--disable-radix-cache", "--disable-cuda-graph"]
        if numbers(version) >= _OWN_CAPTURE:
            layers = map(str, self.sglang_config)
            arguments += ["--enable-return-aux-hidden-states", "--speculative-algorithm", "EAGLE3"]
            arguments += ["--return-aux-hidden-state-layer-ids", *layers]
        return arguments

    @classmethod
    def from_environment(cls) -> "Spool | None":
        """The spool of the server that is given by the environment, or None.

        Raises:
            EngineError: the variable is not what `variables` writes.
        """
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        try:
            content = json.loads(text)
            layers = tuple(map(int, content["hf_hidden_states"]))
            return cls(Path(content["folder"]), layers, int(content["hidden_size"]))
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{VARIABLE} in the environment names no spool",
                saw=text,
                expected='{"folder": ..., "hf_hidden_states": [...], "hidden_size": ...}',
                remedy="start servers with `aerie with-server states -- COMMAND`, which sets it",
            ) from error

    def announce(self, details: dict[str, Any]) -> None:
        """Leave the readiness marker of this server process."""
        content = {
            "format": FORMAT,
            "hf_hidden_states": list(self.hf_hidden_states),
            "hidden_size": self.hidden_size,
            **details,
        }
        self._put(f"ready-{os.getpid()}.json", json.dumps(content, indent=2))

    def report_failure(self, text: str) -> None:
        """Leave word of why this server process ends."""
        self._put(f"failed-{os.getpid()}.txt", text)

    def _put(self, name: str, text: str) -> None:
        scratch = self.folder / f".{name}"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(self.folder / name)

    # The job's side

    def markers(self) -> list[dict[str, Any]]:
        """What the servers of this spool said when they were ready to capture."""
        files = sorted(self.folder.glob("ready-*.json"))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def failures(self) -> list[str]:
        """What servers said when a capture failed."""
        files = sorted(self.folder.glob("failed-*.txt"))
        return [file.read_text(encoding="utf-8") for file in files]


@dataclass(frozen=True)
class Rows:
    """The rows of one request: ids int32 [t], aux bf16 [t, A*H], last bf16 [t, H]."""

    token_ids: "torch.Tensor"
    aux: "torch.Tensor"
    last: "torch.Tensor"


class Inbox:
    """One job's folder in a spool; use as a context manager."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._numbers = 0

    def __enter__(self) -> "Inbox":
        try:
            self._folder, self._lock = _new_folder(self._spool.folder, "job-")
        except OSError as error:
            raise EngineError(
                f"{self._spool.folder} is not a spool that can be used",
                saw=error,
                remedy="server and job must see the same folder: set `sglang.spool`",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def name(self, tokens: int) -> RequestName:
        """A name for the next request, of `tokens` tokens."""
        self._numbers += 1
        return RequestName(self._folder.name, self._numbers, tokens)

    def take(self, name: RequestName, seconds: float) -> Rows | None:
        """The rows of an answered request, or None if they do not appear within `seconds`.

        The file is gone at once; its memory is freed with the tensors.

        Raises:
            EngineError: the server said that its capture failed.
        """
        path = self._folder / str(name.number)
        deadline, pause = time.monotonic() + seconds, 0.0005
        while not path.exists():
            if failures := self._spool.failures():
                raise EngineError("the capture failed in the server", saw=failures[0].strip())
            if time.monotonic() > deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        rows = self._read(path, name.tokens)
        path.unlink()
        return rows

    def _read(self, path: Path, tokens: int) -> Rows:
        import torch

        spool = self._spool
        with path.open("rb") as stream:
            # Private pages: torch wants memory that it may write to.
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        ids, aux, last = spool.starts(tokens)
        if len(data) != spool.row_bytes * tokens:
            raise EngineError(
                f"{path} has another size than its request",
                saw=len(data),
                expected=spool.row_bytes * tokens,
                remedy="the server captures other layers or another target than this job",
            )

        def part(start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.frombuffer(data, dtype=dtype, count=count, offset=start).view(tokens, -1)

        return Rows(
            part(ids, tokens, torch.int32).view(tokens),
            part(aux, tokens * spool.aux_width, torch.bfloat16),
            part(last, tokens * spool.hidden_size, torch.bfloat16),
        )


def _new_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """A fresh folder, and the descriptor of its lock. Those whose maker is gone are removed."""
    for folder in parent.glob(f"{prefix}*"):
        _remove_abandoned(folder)
    # Locked before it has its name, so that nobody takes it for abandoned.
    scratch = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
    lock = os.open(scratch / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return scratch.rename(parent / scratch.name[1:]), lock


def _remove_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return  # another user's, or just removed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its maker lives
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
