"""TEST DOUBLE, see the package."""

from torchvision import missing as __getattr__  # noqa: F401
