"""The licence gate: no dataset is used under a licence that nobody agreed to."""

from aerie.config import Config
from aerie.errors import GateError
from aerie.prompts.adapters import adapter


def check_licences(config: Config) -> None:
    """Check that the licence of every dataset of the mix is allowed, or accepted by name.

    Raises:
        ConfigError: a dataset has no adapter.
        GateError: licences are neither; it names all of them.
    """
    settings = config.licences
    refused = {}
    for name, entry in config.datasets.items():
        reader = adapter(entry.adapter)
        # Nothing is known of an unknown licence, so that a list cannot allow it.
        allowed = reader.licence != "unknown" and reader.licence in settings.allow
        if not allowed and reader.id not in settings.accept:
            refused[name] = f"{name}: {reader.id} is {reader.licence}"
    if refused:
        raise GateError(
            "licences",
            f"{len(refused)} of {len(config.datasets)} datasets may not be used",
            saw="\n    " + "\n    ".join(refused.values()),
            expected="one of " + ", ".join(settings.allow),
            remedy="read the dataset's card, then leave it out of the mix, or write under "
            "`licences.accept` its adapter's id and why it is used all the same",
        )
