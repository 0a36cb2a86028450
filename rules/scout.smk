"""Scout: what the Hub holds for each category of prompts, ranked. No part of `all`.

INPUT: the Hub. OUTPUT: <results>/scout/<category>.json, <results>/scout/report.md.
What the Hub holds is no file that could go stale: `make scout` forces the searches. What is known
of a dataset's commit is kept in <results>/scout/cache/, so that a second run asks for little more
than listings.
"""

import json

from aerie.scout.categories import CATEGORIES

# What the mix reads of the Hub, by id; several entries may read the same dataset.
READ = {name: entry.repo or entry.adapter for name, entry in CONFIG.datasets.items()}
MIX = {
    id: ", ".join(name for name, read in READ.items() if read == id)
    for id in sorted(set(READ.values()))
    if not id.startswith("generic/")
}


rule scout_category:
    input:
        code=code("scout"),
    output:
        "<results>/scout/{category}.json",
    log:
        "<logs>/scout/{category}.log",
    benchmark:
        "<benchmarks>/scout/{category}.tsv"
    wildcard_constraints:
        category="|".join(CATEGORIES),
    resources:
        mem_mb=200,
    params:
        settings=CONFIG.scout.as_json(),
        mix=json.dumps(MIX, sort_keys=True),
    shell:
        r"""
        python scripts/scout.py \
            --log {log:q} \
            --category {wildcards.category} \
            --settings {params.settings:q} \
            --mix {params.mix:q} \
            --cache $(dirname {output:q})/cache \
            --out {output:q}
        """


rule scout:
    input:
        categories=expand("<results>/scout/{category}.json", category=CATEGORIES),
        code=code("scout_report"),
    output:
        json="<results>/scout/report.json",
        markdown="<results>/scout/report.md",
    log:
        "<logs>/scout/report.log",
    benchmark:
        "<benchmarks>/scout/report.tsv"
    resources:
        mem_mb=200,
    shell:
        r"""
        python scripts/scout_report.py \
            --log {log:q} \
            --categories {input.categories:q} \
            --json {output.json:q} \
            --markdown {output.markdown:q}
        """


# Other machines of a cluster may not reach the Hub.
localrules:
    scout_category,
    scout,
