"""TEST DOUBLE, see the package."""

from torchvision import missing as __getattr__  # noqa: F401
from torchvision.transforms.functional import InterpolationMode

__all__ = ["InterpolationMode"]
