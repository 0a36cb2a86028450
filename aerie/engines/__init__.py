"""Engines run the target. One is imported only when it is opened."""

from aerie.engines.base import Engine
from aerie.errors import EngineError
from aerie.target import Target


def open_engine(name: str, target: Target, threads: int) -> Engine:
    """Load `target` in the engine called `name`, with `threads` threads for tensor work.

    Raises:
        EngineError: there is no such engine, or it cannot load the target.
    """
    if name == "transformers":
        from aerie.engines.transformers.load import TransformersEngine

        return TransformersEngine(target, threads)
    if name == "sglang":
        raise EngineError(
            "the engine sglang is not part of this version; it arrives with step 3",
            remedy="set `engine: transformers`",
        )
    raise EngineError(
        "there is no such engine",
        saw=name,
        expected="transformers",
        remedy="set `engine: transformers`",
    )
