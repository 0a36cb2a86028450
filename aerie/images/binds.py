"""What a container must see of the host: what a configuration names outside the checkout."""

import os
from collections.abc import Iterator
from pathlib import Path

from aerie.config import Config, PathSource

# Where the Hub's client keeps files, by the environment.
_CACHES = ("HF_HOME", "HF_HUB_CACHE")


def outside(config: Config, checkout: Path) -> list[str]:
    """Folders and files that `config` and the environment name outside `checkout`, sorted.

    Relative paths are relative to `checkout`. What does not exist is left out; the work folder is
    made.
    """
    work = checkout / config.work
    work.mkdir(parents=True, exist_ok=True)
    inside = checkout.resolve()
    found = {(checkout / path).resolve() for path in _named(config)}
    return sorted(str(path) for path in found if path.exists() and not path.is_relative_to(inside))


def caches(config: Config, checkout: Path) -> dict[str, str]:
    """Variables that keep what libraries cache in the work folder, where nothing is set."""
    folder = str((checkout / config.work).resolve() / "cache")
    names = ("XDG_CACHE_HOME", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR")
    return {name: os.environ.get(name, folder) for name in names}


def _named(config: Config) -> Iterator[str]:
    yield config.work
    yield from (entry.path for entry in config.datasets.values() if entry.path)
    yield from config.bench.suites.values()
    yield from config.prompts.benchmarks
    if isinstance(config.target.source, PathSource):
        yield config.target.source.path
    yield from (os.environ[name] for name in _CACHES if name in os.environ)
