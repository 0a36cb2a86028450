"""TEST DOUBLE, see the package."""

from enum import Enum

from torchvision import missing as __getattr__  # noqa: F401


class InterpolationMode(Enum):
    """Read when transformers' image code is imported."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
