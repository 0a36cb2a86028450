"""The section `states` of the configuration."""

import json
from typing import Any

from aerie.contracts.codecs import Codec, Rounding, Teacher
from aerie.engines import STREAMING
from aerie.section import Section, key


def capture_threads(engine: str) -> int:
    """Threads of a job that captures, whoever starts it.

    Embedded, the same numbers are promised for the same threads alone. Beside a server the job only
    checks and writes what the GPUs compute.
    """
    return 8 if engine in STREAMING else 1


class TeacherSettings(Section):
    """What the codec `teacher` keeps."""

    k: int = key(64, "likeliest tokens of a distribution", ge=1, le=4096)
    aux: Rounding = key("fp8", "how the captured layers are stored")

    def stored(self) -> Teacher:
        """The same for those that write files."""
        return Teacher(self.k, self.aux)


class StatesSettings(Section):
    """Capture of hidden states."""

    layers: tuple[int, ...] | None = key(
        None,
        "indices into output_hidden_states; default [2, N//2, N-3]",
        "give three ascending layers between 1 and N-1, or leave the key out",
    )
    codec: Codec = key(
        "bf16",
        "how states are stored: as captured; in fp8 with half the bytes; or the final state as the "
        "target's likeliest tokens (`teacher`)",
    )
    teacher: TeacherSettings = TeacherSettings()
    batch_tokens: int = key(4096, "tokens of one forward pass", ge=64)
    file_bytes: int = key(2_000_000_000, "size of one states file, about", ge=1_000_000)

    def as_json(self) -> str:
        """Without what the codec does not use: a change of it makes no states stale."""
        unused = set() if self.codec == "teacher" else {"teacher"}
        return json.dumps(self.model_dump(mode="json", exclude=unused), sort_keys=True)

    def stored(self) -> dict[str, Any]:
        """How states are stored, as their index says it."""
        if self.codec != "teacher":
            return {"codec": self.codec}
        return {"codec": self.codec, "teacher": self.teacher.model_dump(mode="json")}
