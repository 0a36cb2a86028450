"""Responses: the target answers every prompt.

INPUT: parts of prompts. OUTPUT: <results>/responses/<dataset>/<part>.{json,parquet}.
The journal lies outside the outputs: a job that was killed pays for no answer twice.
"""


rule responses:
    input:
        prompts=selected_part,
        target="<results>/target/target.json",
    output:
        sidecar="<results>/responses/{dataset}/{part}.json",
        table="<results>/responses/{dataset}/{part}.parquet",
        rejects="<results>/responses/{dataset}/{part}.rejects.parquet",
    log:
        "<logs>/responses/{dataset}/{part}.log",
    benchmark:
        "<benchmarks>/responses/{dataset}/{part}.tsv"
    container:
        image("responses")
    threads: 1
    resources:
        mem_mb=1500,
        gpu=GPUS,
    params:
        image=recipe("responses"),
        settings=lambda wildcards: CONFIG.responses_of(wildcards.dataset).as_json(),
        engine=CONFIG.engine,
        seed=CONFIG.seed,
        journal=f"{CONFIG.work}/journal/responses/{{dataset}}/{{part}}.jsonl",
        contract=VERSIONS["responses"],
    shell:
        r"""
        python scripts/responses.py \
            --log {log:q} \
            --threads {threads} \
            --prompts {input.prompts:q} \
            --target {input.target:q} \
            --settings {params.settings:q} \
            --engine {params.engine} \
            --seed {params.seed} \
            --journal {params.journal:q} \
            --out {output.sidecar:q}
        """
