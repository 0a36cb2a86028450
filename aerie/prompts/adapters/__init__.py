"""Adapters: one small class a dataset, which says where its prompts are.

docs/adding-a-dataset.md shows how one is written.
"""

from aerie.errors import ConfigError

# Importing a module of adapters registers them.
from aerie.prompts.adapters import agentic, chat, code, large, reasoning, tools  # noqa: F401
from aerie.prompts.adapters.base import REGISTRY, Adapter, Category
from aerie.prompts.adapters.families import OWN_DATA

__all__ = ["Adapter", "Category", "adapter", "adapters"]


def adapter(id: str) -> Adapter:
    """The adapter of a dataset; every id that begins with `generic/` is a folder of one's own.

    Raises:
        ConfigError: there is none of that id.
    """
    known = OWN_DATA if id.startswith(OWN_DATA.split("/")[0] + "/") else id
    if known not in REGISTRY:
        raise ConfigError(
            f"there is no adapter {id!r}",
            expected="one of " + ", ".join(sorted(REGISTRY)),
            remedy="correct `adapter` of the dataset, or add one as docs/adding-a-dataset.md shows",
        )
    return REGISTRY[known]()


def adapters() -> dict[str, type[Adapter]]:
    """All adapters by id, sorted."""
    return dict(sorted(REGISTRY.items()))
