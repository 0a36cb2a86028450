"""TEST DOUBLE: SGLang and transformers import torchvision and, for text, never call it.

The package index has only builds of torchvision for CUDA, which a CPU build of torch refuses.
Any name can be imported from it; calling one says that it is not there.
"""

from typing import Any

__version__ = "0"


def missing(name: str) -> Any:
    """What stands for `name`: a function that refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*_: object, **__: object) -> None:
        raise NotImplementedError(f"the stand-in for torchvision has no {name}")

    return call


__getattr__ = missing
