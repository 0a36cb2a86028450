"""Aerie: from a target and a mix of datasets to a draft that is proven.

The rules are in rules/, one file a phase, in the order in which they run. All artifacts lie under
the configured work folder, `<results>`. `snakemake -n` says what would run and why.
"""

from snakemake.utils import min_version

min_version("9.27.0")

if "work" not in config:

    configfile: "config.yaml"


include: "rules/common.smk"
include: "rules/images.smk"


# Used under `--sdm apptainer` and nowhere else: docs/containers.md.
container: image()


pathvars:
    results=CONFIG.work,
    logs=f"{CONFIG.work}/logs",
    benchmarks=f"{CONFIG.work}/benchmarks",


wildcard_constraints:
    dataset="[a-z][a-z0-9_]*",
    run="[a-z][a-z0-9_]*",
    suite="[a-z][a-z0-9_]*",
    part="[0-9]+",


include: "rules/scout.smk"
include: "rules/plan.smk"
include: "rules/target.smk"
include: "rules/prompts.smk"
include: "rules/responses.smk"
include: "rules/vocab.smk"
include: "rules/states.smk"
include: "rules/rolling.smk" if CONFIG.rolling else "rules/draft.smk"
include: "rules/bench.smk"
include: "rules/scaling.smk"
include: "rules/report.smk"
include: "rules/phases.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        "<results>/report/index.html",
        everything,
