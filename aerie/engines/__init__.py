"""Engines run the target. One is imported only when it is opened."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from aerie.engines.base import CaptureStream, Engine, StreamEngine
from aerie.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from aerie.contracts.layers import Layers
    from aerie.target import Target

# Engines that answer many requests at their own pace; the others answer batches.
STREAMING = frozenset({"sglang"})


def open_engine(name: str, target: "Target", threads: int) -> Engine:
    """Load `target` in the engine called `name`, with `threads` threads for tensor work.

    Raises:
        EngineError: there is no such engine, or it cannot load the target.
    """
    if name == "transformers":
        from aerie.engines.transformers.load import TransformersEngine

        return TransformersEngine(target, threads)
    raise EngineError(
        "there is no such engine that answers batches",
        saw=name,
        expected="transformers",
        remedy="set `engine: transformers`",
    )


def open_stream(name: str, target: "Target", log: "Path") -> AbstractContextManager[StreamEngine]:
    """The engine called `name`, one of `STREAMING`, for as long as the context lasts.

    A server that it starts writes its log to `log`.

    Raises:
        EngineError: there is no such engine, or it cannot run the target.
    """
    if name in STREAMING:
        from aerie.engines.sglang.stream import open_sglang

        return open_sglang(target, log)
    raise EngineError(
        "there is no such engine that streams", saw=name, expected=", ".join(STREAMING)
    )


def open_capture(
    name: str, target: "Target", layers: "Layers", log: "Path"
) -> AbstractContextManager[CaptureStream]:
    """The engine called `name`, one of `STREAMING`, ready to capture `layers` of `target`.

    A server that it starts writes its log to `log`.

    Raises:
        EngineError: there is no such engine, or it cannot run the target.
    """
    if name in STREAMING:
        from aerie.engines.sglang.capture import open_sglang_capture

        return open_sglang_capture(target, layers, log)
    raise EngineError(
        "there is no such engine that streams", saw=name, expected=", ".join(STREAMING)
    )
