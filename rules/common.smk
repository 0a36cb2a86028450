"""Every helper of the rules: the configuration, code as an input, and what parts there are."""

import ast
import functools
import os
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, workflow.basedir)

from aerie import config as configuration
from aerie.contracts import VERSIONS
from aerie.errors import AerieError
from aerie.gates.licences import check_licences
from aerie.prompts.adapters import adapter
from aerie.prompts.select import whole_selection
from aerie.states.settings import capture_threads


def checked(config):
    """The configuration, typed; an error names the line of the file that it came from."""
    source = (
        str(workflow.configfiles[0]) if workflow.configfiles else "the configuration"
    )
    text = Path(source).read_text(encoding="utf-8") if workflow.configfiles else ""
    try:
        result = configuration.validate(config, text, source)
        # Snakemake would take a bench that is there for good when its suite is gone.
        configuration.check_suites(result)
        check_licences(result)
    except AerieError as error:
        raise WorkflowError(str(error)) from None
    return result


CONFIG = checked(config)
DATASETS = list(CONFIG.datasets)
# The run whose recipe the studies follow.
SCALED = next(iter(CONFIG.drafts))
FROM_HUB = [name for name, entry in CONFIG.datasets.items() if entry.hub]
# Prompts that must not be trained on.
BENCHMARKS = sorted({*CONFIG.bench.suites.values(), *CONFIG.prompts.benchmarks})
LARGE_DATASET_BYTES = 64_000_000
# A production engine has the whole host; the embedded one shares the cores.
GPUS = 0 if CONFIG.engine == "transformers" else 1
# How servers are run reaches jobs beside their params: no part goes stale because a port changed.
os.environ.update(AERIE_SGLANG=CONFIG.sglang.as_json())
# So does how much compressed input may unpack to: what passes is the same.
os.environ.update(AERIE_MAX_UNPACKED_BYTES=str(CONFIG.prompts.max_unpacked_bytes))
# So does where a training run is shown.
os.environ.update(AERIE_TRACKING=CONFIG.tracking.as_json())
# So does how much of the states is on the disk at a time.
if CONFIG.rolling:
    os.environ.update(AERIE_ROLLING=CONFIG.rolling.as_json())


def code(script):
    """A script and the modules of aerie/ that it imports, as inputs: an edit is seen and named."""
    found = [f"scripts/{script}.py"]
    for file in found:
        found += [name for name in imported(file) if name not in found]
    return sorted(found)


# Every rule asks for much the same modules, and every job reads the rules again.
@functools.cache
def imported(file):
    """Modules of aerie/ that a file imports, at its top or inside a function, as paths."""
    names = set()
    source = Path(workflow.basedir, file).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    paths = [Path(*name.split(".")) for name in names if name.startswith("aerie")]
    return [
        str(candidate)
        for path in paths
        for candidate in (path.with_suffix(".py"), path / "__init__.py")
        if Path(workflow.basedir, candidate).is_file()
    ]


def parts(dataset):
    """The parts that were selected of a dataset. Waits for the checkpoint that selects them."""
    folder = checkpoints.prompts.get(dataset=dataset).output.folder
    try:
        return whole_selection(Path(folder))
    except AerieError as error:
        raise WorkflowError(str(error)) from None


def of_parts(pattern):
    """An input function: `pattern` for every part of the wildcard's dataset."""
    return lambda wildcards: expand(
        pattern, dataset=wildcards.dataset, part=parts(wildcards.dataset)
    )


def of_all_parts(pattern):
    """An input function: `pattern` for every part of every dataset."""
    return lambda wildcards: [
        path
        for dataset in DATASETS
        for path in expand(pattern, dataset=dataset, part=parts(dataset))
    ]


def of_datasets(pattern):
    """An input function: `pattern` for every dataset, once it has been selected."""
    return lambda wildcards: [
        f"{checkpoints.prompts.get(dataset=dataset).output.folder}/{pattern}"
        for dataset in DATASETS
    ]


def suite_file(wildcards):
    """The prompts of a suite: a file of the user's, or what was held out of the mix."""
    return CONFIG.bench.suites.get(
        wildcards.suite, f"<results>/suites/{configuration.MIX}.jsonl"
    )


def selected_part(wildcards):
    """The sidecar of one selected part."""
    folder = checkpoints.prompts.get(dataset=wildcards.dataset).output.folder
    return f"{folder}/{wildcards.part}.json"


def the_map(wildcards):
    """The map's sidecar. The map is a checkpoint: one made again with the same bytes wakes no run."""
    return checkpoints.map.get().output.sidecar


def the_draft(wildcards):
    """The sidecar of the wildcard's run, once it is known whether it will be trained again.

    Snakemake decides anew after a checkpoint, but only for those that wait for that checkpoint.
    """
    the_map(wildcards)
    if not CONFIG.rolling:
        the_states(wildcards)
    return f"<results>/draft/{wildcards.run}/draft.json"


def the_drafts(wildcards):
    """What says that each draft is there: with `rolling`, what it cost was written last."""
    files = ["draft.json", "rolling.json"] if CONFIG.rolling else ["draft.json"]
    return expand("<results>/draft/{run}/{file}", run=CONFIG.drafts, file=files)


def the_coverage(wildcards):
    """What the map covers, known when the map is."""
    return checkpoints.map.get().output.coverage


def the_states(wildcards):
    """The manifest of all states, a checkpoint as the map is."""
    if CONFIG.rolling:
        raise WorkflowError(
            "with `rolling` in the configuration, the states are never there all at once\n"
            "  remedy:   drafts are trained without: `-- all_drafts`; for a study, take `rolling` "
            "out on a disk that holds all states"
        )
    return checkpoints.manifest.get().output.sidecar


def indexes_that_stay(wildcards):
    """The index of every part of states; none where they come and go."""
    pattern = "<results>/states/{dataset}/{part}/index.json"
    return [] if CONFIG.rolling else of_all_parts(pattern)(wildcards)


def states_that_stay(wildcards):
    """The same, with the manifest."""
    indexes = indexes_that_stay(wildcards)
    return [] if CONFIG.rolling else [*indexes, the_states(wildcards)]


def everything(wildcards):
    """The sidecar of every artifact, so that one that was lost is made again.

    Snakemake does not miss a file in the middle while the last one is there.
    """
    return [
        "<results>/target/target.json",
        *expand("<results>/sources/{dataset}/source.json", dataset=FROM_HUB),
        *expand("<results>/candidates/{dataset}/candidates.json", dataset=DATASETS),
        *of_all_parts("<results>/responses/{dataset}/{part}.json")(wildcards),
        *expand("<results>/vocab/counts/{dataset}.json", dataset=DATASETS),
        the_map(wildcards),
        *states_that_stay(wildcards),
        *the_drafts(wildcards),
        *expand(
            "<results>/bench/{run}/{suite}.json",
            run=CONFIG.drafts,
            suite=CONFIG.bench.names,
        ),
        "<results>/overlap/overlap.json",
        "<results>/lock.json",
    ]


def earlier(file):
    """An input function: a file of the candidates of each dataset before the wildcard's one.

    Those keep what both of them have.
    """
    return lambda wildcards: expand(
        f"<results>/candidates/{{dataset}}/{file}",
        dataset=DATASETS[: DATASETS.index(wildcards.dataset)],
    )


def source_files(wildcards):
    """What candidates are read from: local files, or the sidecar of what came from the Hub."""
    entry = CONFIG.datasets[wildcards.dataset]
    if entry.hub:
        return f"<results>/sources/{wildcards.dataset}/source.json"
    path = Path(entry.path)
    files = [path] if path.is_file() else path.rglob("*")
    return sorted(str(file) for file in files if file.is_file())


def source_path(wildcards):
    """The file or folder that candidates are read from."""
    entry = CONFIG.datasets[wildcards.dataset]
    return (
        f"{CONFIG.work}/sources/{wildcards.dataset}/files" if entry.hub else entry.path
    )


def origin(wildcards):
    """The option that names the sidecar of what came from the Hub; none for a local dataset."""
    sidecar = f"{CONFIG.work}/sources/{wildcards.dataset}/source.json"
    is_hub = CONFIG.datasets[wildcards.dataset].hub is not None
    return f"--origin {shlex.quote(sidecar)}" if is_hub else ""


def hub_repo(wildcards):
    """The dataset on the Hub."""
    return CONFIG.datasets[wildcards.dataset].hub[0]


def hub_revision(wildcards):
    """What the configuration calls its revision; the sidecar of the source has the commit."""
    return CONFIG.datasets[wildcards.dataset].hub[1]


def wanted_files(wildcards):
    """Patterns of the files that are read."""
    return list(CONFIG.datasets[wildcards.dataset].files or adapter_of(wildcards).files)


def columns(name):
    """A params function: `columns` or `optional` of the dataset's adapter."""
    return lambda wildcards: list(getattr(adapter_of(wildcards), name))


def adapter_of(wildcards):
    """The adapter of the wildcard's dataset."""
    try:
        return adapter(CONFIG.datasets[wildcards.dataset].adapter)
    except AerieError as error:
        raise WorkflowError(str(error)) from None


def dataset(name):
    """A params function: one setting of the wildcard's dataset."""
    return lambda wildcards: getattr(CONFIG.datasets[wildcards.dataset], name)


def thinking_share(wildcards):
    """The share of a dataset's prompts that the target thinks about."""
    own = CONFIG.datasets[wildcards.dataset].thinking_share
    return CONFIG.prompts.thinking_share if own is None else own


def reading_processes(wildcards):
    """Processes that read a dataset: cores that are left when each dataset has one."""
    entry = CONFIG.datasets[wildcards.dataset]
    size = 0 if entry.hub else sum(map(os.path.getsize, source_files(wildcards)))
    # For less, starting them takes longer than reading.
    large = entry.hub or size > LARGE_DATASET_BYTES
    return max(1, (workflow.cores or 1) // len(DATASETS)) if large else 1


def all_cores(wildcards):
    """Every core there is, up to where a model as small as the embedded one stops to gain."""
    return min(workflow.cores or 1, 4)


def ranks(wildcards):
    """Processes that train the wildcard's draft, each with a GPU where there are any."""
    return CONFIG.drafts[getattr(wildcards, "run", SCALED)].gpus


def trainer(wildcards):
    """What starts the script that trains: Python, or torchrun for several processes.

    A checkpoint takes longer to write than torchrun, by itself, waits for processes to end.
    """
    several = ranks(wildcards)
    return (
        "python"
        if several == 1
        else f"torchrun --standalone --nproc-per-node {several} --shutdown-timeout 120 --"
    )


def scaling_points():
    """Name of each point: `<divisor>-<seed>`. The two smallest fractions are trained several times."""
    divisors = sorted(set(CONFIG.scaling.divisors), reverse=True)
    return ["1-0"] + [
        f"{divisor}-{seed}"
        for place, divisor in enumerate(divisors)
        for seed in range(CONFIG.scaling.seeds if place < 2 else 1)
    ]


def seeded(wildcards):
    """The recipe, with another seed for each draft of a fraction."""
    settings = CONFIG.drafts[SCALED]
    seed = settings.seed + int(wildcards.seed)
    return settings.model_copy(update={"seed": seed}).as_json()


def made(file):
    """The file under the work folder, if it is there."""
    return [path for path in [f"{CONFIG.work}/{file}"] if Path(path).exists()]
