"""Which image a phase runs in under `--sdm apptainer`, and what a container sees of the host.

The recipe of its image is a param of each phase whose result an image can change. Another recipe makes
exactly those stale, with containers and without, so that both share one result tree. `target` and
`source` have none: their contract version says what they are, and a rerun would cost hours.
"""

from os import environ as environment

from snakemake.settings.types import DeploymentMethod

from aerie.images.binds import caches, outside
from aerie.images.lockfile import read_images

IMAGES = read_images(Path(workflow.basedir))
# The embedded engine is in the first image. A server of the other one has an image of its own.
IMAGE_OF = (
    {"responses": "serve", "states": "serve", "bench": "serve", "draft": "train"}
    if CONFIG.engine == "sglang"
    else {}
)
IN_CONTAINERS = (
    DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
)


def image(phase="cpu"):
    """The SIF of a phase. Snakemake would miss it in the first job, after the plan was made."""
    found = IMAGES[IMAGE_OF.get(phase, "cpu")]
    if IN_CONTAINERS and not Path(found.file).is_file():
        raise WorkflowError(
            f"image: {found.file} is not there\n"
            f"  remedy:   make images IMAGES={found.name}, or copy it from where it was built"
        )
    return found.file


def recipe(phase="cpu"):
    """What the image of a phase is made of, as one digest."""
    return IMAGES[IMAGE_OF.get(phase, "cpu")].recipe


if IN_CONTAINERS:
    # By the environment, which jobs inherit; a job of a cluster reads this file again. The checkout
    # is the home of a container, and caches shall not land in it.
    binds = [*filter(None, [environment.get("APPTAINER_BIND")])]
    binds += outside(CONFIG, Path.cwd())
    environment.update(APPTAINER_BIND=",".join(binds), **caches(CONFIG, Path.cwd()))
