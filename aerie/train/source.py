"""What a run trains on: its samples, where each lies, and what their states were captured of."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from aerie.contracts.layers import Layers
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.files import canonical_json, digest_json, read_json, write_sealed
from aerie.states.manifest import read_manifest
from aerie.train.data import Located, locate


@dataclass(frozen=True)
class TrainingSource:
    """`states` is the digest that stands for all states of `samples`, which lie in files of
    `layers`. With rolling capture most of the files are not there at any one time.
    """

    samples: Sequence[Located]
    layers: Layers
    states: str

    @classmethod
    def of_manifest(cls, manifest: Path) -> "TrainingSource":
        """The states of a whole build, as its manifest names them.

        Raises:
            ContractError: a file is missing or damaged, or parts have different layers or codecs.
        """
        indexes = read_manifest(manifest)
        digest = digest_json(read_sidecar(manifest, "manifest")["files"])
        return cls(locate(indexes), _layers(indexes), digest)

    @classmethod
    def read(cls, path: Path) -> "TrainingSource":
        """What `write` wrote.

        Raises:
            ContractError: it is missing or damaged.
        """
        content = read_json(path)
        samples = [
            Located(**{**sample, "file": Path(sample["file"])}) for sample in content["samples"]
        ]
        return cls(samples, Layers(tuple(content["layers"])), content["states"])

    def write(self, path: Path) -> None:
        """Write it for another process."""
        samples = [{**asdict(sample), "file": str(sample.file)} for sample in self.samples]
        layers = self.layers.hf_hidden_states
        write_sealed(path, {"samples": samples, "layers": layers, "states": self.states})


def _layers(indexes: Iterable[Path]) -> Layers:
    read = [read_sidecar(index, "states") for index in indexes]
    how = ("codec", "teacher")
    found = {
        canonical_json([each["layers"], *(each["provenance"].get(name) for name in how)])
        for each in read
    }
    if len(found) != 1:
        raise ContractError(
            "the states were captured with different layers or codecs",
            saw=sorted(found),
            expected="one set of layers and one codec",
            remedy="run the build again: parts of another configuration are captured anew",
        )
    return Layers(tuple(read[0]["layers"]["hf_hidden_states"]))
