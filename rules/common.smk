"""Every helper of the rules: the configuration, code as an input, and what parts there are."""

import ast
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, workflow.basedir)

from aerie import config as configuration
from aerie.contracts import VERSIONS
from aerie.errors import AerieError
from aerie.prompts.select import read_selection


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
    except AerieError as error:
        raise WorkflowError(str(error)) from None
    return result


CONFIG = checked(config)
DATASETS = list(CONFIG.datasets)
# A production engine has the whole host; the embedded one shares the cores.
GPUS = 0 if CONFIG.engine == "transformers" else 1


def code(script):
    """A script and the modules of aerie/ that it imports, as inputs: an edit is seen and named."""
    found = [Path("scripts") / f"{script}.py"]
    for file in found:
        for name in imported(Path(workflow.basedir, file).read_text(encoding="utf-8")):
            for candidate in (name.with_suffix(".py"), name / "__init__.py"):
                if (
                    Path(workflow.basedir, candidate).is_file()
                    and candidate not in found
                ):
                    found.append(candidate)
    return sorted(map(str, found))


def imported(source):
    """Modules of aerie/ that a source imports, at its top or inside a function, as paths."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [
                node.module,
                *(f"{node.module}.{alias.name}" for alias in node.names),
            ]
        yield from (
            Path(*name.split(".")) for name in names if name.startswith("aerie")
        )


def parts(dataset):
    """The parts that were selected of a dataset. Waits for the checkpoint that selects them."""
    folder = checkpoints.prompts.get(dataset=dataset).output.folder
    return read_selection(Path(folder))


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
    the_states(wildcards)
    return f"<results>/draft/{wildcards.run}/draft.json"


def the_coverage(wildcards):
    """What the map covers, known when the map is."""
    return checkpoints.map.get().output.coverage


def the_states(wildcards):
    """The manifest of all states, a checkpoint as the map is."""
    return checkpoints.manifest.get().output.sidecar


def everything(wildcards):
    """The sidecar of every artifact, so that one that was lost is made again.

    Snakemake does not miss a file in the middle while the last one is there.
    """
    return [
        "<results>/target/target.json",
        *expand("<results>/candidates/{dataset}/candidates.json", dataset=DATASETS),
        *of_all_parts("<results>/responses/{dataset}/{part}.json")(wildcards),
        *expand("<results>/vocab/counts/{dataset}.json", dataset=DATASETS),
        *of_all_parts("<results>/states/{dataset}/{part}/index.json")(wildcards),
        the_map(wildcards),
        the_states(wildcards),
        *expand("<results>/draft/{run}/draft.json", run=CONFIG.drafts),
        *expand(
            "<results>/bench/{run}/{suite}.json",
            run=CONFIG.drafts,
            suite=CONFIG.bench.suites,
        ),
        "<results>/lock.json",
    ]


def earlier(wildcards):
    """Candidates of the datasets that come before this one and keep what both of them have."""
    before = DATASETS[: DATASETS.index(wildcards.dataset)]
    return expand("<results>/candidates/{dataset}/candidates.json", dataset=before)


def source_files(wildcards):
    """Files of a dataset's local copy: a changed one makes its candidates stale."""
    folder = Path(CONFIG.datasets[wildcards.dataset].path)
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


def dataset(name):
    """A params function: one setting of the wildcard's dataset."""
    return lambda wildcards: getattr(CONFIG.datasets[wildcards.dataset], name)


def all_cores(wildcards):
    """Every core there is, up to where a model as small as the embedded one stops to gain."""
    return min(workflow.cores or 1, 4)
