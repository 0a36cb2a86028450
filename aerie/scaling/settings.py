"""The sections `scaling`, `map_study` and `mix_study` of the configuration."""

from typing import Annotated

from pydantic import Field

from aerie.section import Section, key


class MapStudySettings(Section):
    """What the size of the map costs and gains. `make map-study`."""

    sizes: tuple[Annotated[int, Field(ge=64, multiple_of=64)], ...] = key(
        (8192, 16384, 32768, 65536),
        "sizes of the map that are compared, beside its own and the whole vocabulary",
        "use multiples of 64",
        min_length=1,
    )


class ScalingSettings(Section):
    """Whether more data would help: drafts on nested fractions of the data. `make scaling`."""

    divisors: tuple[Annotated[int, Field(ge=2)], ...] = key(
        (16, 8, 4, 2),
        "fractions of the data that are trained on, beside all of it",
        "three fractions at least, such as [8, 4, 2]: a curve needs four sizes",
        min_length=3,
    )
    seeds: int = key(2, "drafts of each of the two smallest fractions", ge=1)
    least_gain: float = key(0.02, "accept length that doubling the data must add", gt=0)


class MixStudySettings(Section):
    """Which dataset helps which domain: drafts without each dataset. `make mix-study`."""

    divisor: int = key(4, "each draft is trained on one sample in so many", ge=2)
    seeds: int = key(2, "drafts of each mix; one alone cannot tell luck from effect", ge=2)
