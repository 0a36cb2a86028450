"""Report: everything above on one page, and the lock of all inputs.

INPUT: sidecars and figures of every phase. OUTPUT: <results>/report/index.html, <results>/lock.json.
The page shows the first run of `drafts`.
"""

import json

from aerie.lock import digest_settings, git_commit

SHOWN = next(iter(CONFIG.drafts))


rule lock:
    input:
        target="<results>/target/target.json",
        selections=of_datasets("selection.json"),
        candidates=expand(
            "<results>/candidates/{dataset}/candidates.json", dataset=DATASETS
        ),
        requirements="requirements/run.txt",
        images="containers/images.lock.yaml",
        code=code("lock"),
    output:
        "<results>/lock.json",
    log:
        "<logs>/lock.log",
    benchmark:
        "<benchmarks>/lock.tsv"
    resources:
        mem_mb=200,
    params:
        settings=json.dumps(digest_settings(CONFIG)),
        commit=git_commit(Path(workflow.basedir)),
    shell:
        r"""
        python scripts/lock.py \
            --log {log:q} \
            --target {input.target:q} \
            --selections {input.selections:q} \
            --candidates {input.candidates:q} \
            --requirements {input.requirements:q} \
            --settings {params.settings:q} \
            --images {input.images:q} \
            --commit {params.commit:q} \
            --out {output:q}
        """


rule report:
    input:
        bench=expand(
            "<results>/bench/{run}/{suite}.json",
            run=CONFIG.drafts,
            suite=CONFIG.bench.names,
        ),
        draft=f"<results>/draft/{SHOWN}/draft.json",
        eval=f"<results>/draft/{SHOWN}/eval.json",
        train=f"<results>/draft/{SHOWN}/train.jsonl",
        map=the_map,
        coverage=the_coverage,
        target="<results>/target/target.json",
        selections=of_datasets("selection.json"),
        licences=of_datasets("licence.json"),
        candidates=expand(
            "<results>/candidates/{dataset}/candidates.json", dataset=DATASETS
        ),
        responses=of_all_parts("<results>/responses/{dataset}/{part}.json"),
        states=indexes_that_stay,
        rolling=[f"<results>/draft/{SHOWN}/rolling.json"] if CONFIG.rolling else [],
        lock="<results>/lock.json",
        # A study is made when it is asked for; one that is there belongs on the page.
        scaling=made("scaling/scaling.json"),
        map_study=made("map_study/map_study.json"),
        mix_study=made("mix_study/mix_study.json"),
        template=["aerie/report/page.html.j2", "aerie/report/page.css"],
        code=code("report"),
    output:
        page="<results>/report/index.html",
    log:
        "<logs>/report.log",
    benchmark:
        "<benchmarks>/report.tsv"
    resources:
        mem_mb=500,
    params:
        image=recipe(),
        studies=lambda wildcards, input: " ".join(
            f"--{name.replace('_', '-')} {shlex.quote(str(file))}"
            for name in ("scaling", "map_study", "mix_study", "rolling")
            for file in input.get(name) or []
        ),
    shell:
        r"""
        python scripts/report.py \
            --log {log:q} \
            --bench {input.bench:q} \
            --draft {input.draft:q} \
            --eval {input.eval:q} \
            --train {input.train:q} \
            --coverage {input.coverage:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --selections {input.selections:q} \
            --candidates {input.candidates:q} \
            --licences {input.licences:q} \
            --responses {input.responses:q} \
            --states {input.states:q} \
            --lock {input.lock:q} \
            {params.studies} \
            --out {output.page:q}
        """
