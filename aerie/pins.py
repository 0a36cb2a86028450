"""What a requirements file pins."""

import re
from collections.abc import Iterator
from pathlib import Path

from aerie.errors import ConfigError

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#*]+)$")


def read_pins(path: Path) -> dict[str, str]:
    """The packages that a requirements file pins, by normalised name, with their versions.

    Raises:
        ConfigError: the file is missing, or a line names a package without an exact version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", saw=error) from error
    pins: dict[str, str] = {}
    for number, requirement in _requirements(text):
        found = _PIN.match(requirement)
        if not found:
            raise ConfigError(
                f"{path}, line {number}, does not pin a version",
                saw=requirement,
                expected="name==version",
                remedy="pin it: a lock must name exactly what was used",
            )
        pins[re.sub(r"[-_.]+", "-", found[1]).lower()] = found[2]
    return dict(sorted(pins.items()))


def _requirements(text: str) -> Iterator[tuple[int, str]]:
    """Line number and requirement, without comments, markers, hashes and options of pip."""
    joined = re.sub(r"\\\n", " ", text)
    for number, line in enumerate(joined.splitlines(), start=1):
        bare = re.sub(r"(^|\s)#.*", "", line)
        bare = re.split(r"\s--", bare)[0].split(";")[0].strip()
        if bare and not bare.startswith("-"):
            yield number, bare
