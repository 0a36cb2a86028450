"""Where the figures of a run go while it trains: JSON lines, TensorBoard, Weights & Biases."""

import secrets
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from aerie.errors import ConfigError
from aerie.files import canonical_json
from aerie.train.settings import TrackingSettings, WandbSettings

# Waiting for a network must not keep a GPU; the second is what SLURM leaves a job to end.
_START_S = 60
_FINISH_S = 20


class Tracker(Protocol):
    """One of the places. Whatever it raises, the run goes on without it."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Figures as they are after `step` optimizer steps."""

    def close(self) -> None:
        """Let go of files and connections."""


# Makes a tracker for a run that goes on after the given step: 0 for one that begins.
Maker = Callable[[int], Tracker]


def makers(
    settings: TrackingSettings, folder: Path, name: str, recipe: dict[str, Any]
) -> dict[str, Maker]:
    """What `settings` asks for. `name` is what the run is called, `recipe` how it is trained.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    found: dict[str, Maker] = {"JSON lines": lambda step: JsonLines(folder, step)}
    if settings.tensorboard:
        _need("tensorboardX", "tracking.tensorboard")
        found["TensorBoard"] = lambda step: TensorBoard(folder, step)
    if (wandb := settings.wandb) is not None:
        _need("wandb", "tracking.wandb")
        found["Weights & Biases"] = lambda step: Wandb(wandb, folder, name, recipe, step)
    return found


def _need(package: str, key: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"{key} is set, and the Python that trains lacks {package}",
            saw=f"no package {package}",
            expected="the packages of requirements/tracking.txt",
            remedy=f"install them, `pip install -r requirements/tracking.txt`, or remove {key}; "
            "docs/training.md, under `Tracking`, has images too",
        )


class JsonLines:
    """`tracking.jsonl`: one object a line, its step and the time in seconds since 1970.

    A run that was killed repeats the steps after its last checkpoint: the later line counts.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tracking.jsonl"
        self._file = path.open("a" if step else "w", encoding="utf-8", buffering=1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append a line."""
        line = {"step": step, "time": round(time.time(), 3), **values}
        self._file.write(canonical_json(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files under `tensorboard/`. Of steps that are trained again the later figures show.

    The package's `SummaryWriter` writes in a thread, and when that thread fails, on a full disk
    say, the next figures wait for it for ever. What it is made of raises here.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        (folder / "tensorboard").mkdir(parents=True, exist_ok=True)
        self._file = EventsWriter(str(folder / "tensorboard/events"), f".from-{step}")
        # Hides what earlier files say of later steps.
        start = SessionLog(status=SessionLog.START)
        self._file.write_event(Event(step=step + 1 if step else 0, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append scalars and hand them to the system, so that they can be watched."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(step=step, wall_time=time.time(), summary=Summary(value=scalars))
        self._file.write_event(event)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Wandb:
    """A run of Weights & Biases. One that was killed continues under its own identifier."""

    def __init__(
        self, settings: WandbSettings, folder: Path, name: str, recipe: dict[str, Any], step: int
    ) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        identity = folder / "wandb.id"
        if not step or not identity.is_file():
            identity.write_text(secrets.token_hex(6), encoding="utf-8")
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            mode=settings.mode,
            name=name,
            id=identity.read_text(encoding="utf-8"),
            resume="allow",
            dir=folder,
            config=recipe,
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False,
                init_timeout=_START_S, finish_timeout=_FINISH_S, finish_timeout_raises=False,
            ),
        )  # fmt: skip
        # Its own count of steps can only rise, which a run that is continued does not.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the figures; the package sends them by itself."""
        self._run.log({"step": step, **values})

    def close(self) -> None:
        """Send what is queued, for 20 s at most."""
        self._run.finish()
