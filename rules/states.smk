"""States: one forward pass of the target over each prompt and its response.

INPUT: responses. OUTPUT: <results>/states/<dataset>/<part>/index.json, <results>/states/manifest.json.
The manifest is a checkpoint: states that come out the same, after a repair say, train no draft. The terabytes beside the
index are Aerie's and not Snakemake's, which would delete them before a rerun: a job checks them by
digest, keeps what is right and writes the rest.
"""


rule states:
    input:
        responses="<results>/responses/{dataset}/{part}.json",
        table=ancient("<results>/responses/{dataset}/{part}.parquet"),
        target="<results>/target/target.json",
    output:
        index="<results>/states/{dataset}/{part}/index.json",
    log:
        "<logs>/states/{dataset}/{part}.log",
    benchmark:
        "<benchmarks>/states/{dataset}/{part}.tsv"
    container:
        image("states")
    threads: capture_threads(CONFIG.engine)
    resources:
        mem_mb=1500,
        gpu=GPUS,
    params:
        image=recipe("states"),
        settings=CONFIG.states.as_json(),
        engine=CONFIG.engine,
        answers="--greedy" if CONFIG.responses.temperature == 0 else "--sampled",
        contract=VERSIONS["states"],
    shell:
        r"""
        python scripts/states.py \
            --log {log:q} \
            --threads {threads} \
            --responses {input.responses:q} \
            --target {input.target:q} \
            --settings {params.settings:q} \
            --engine {params.engine} \
            {params.answers} \
            --out {output.index:q}
        """


checkpoint manifest:
    input:
        states=of_all_parts("<results>/states/{dataset}/{part}/index.json"),
        code=code("manifest"),
    output:
        sidecar="<results>/states/manifest.json",
    log:
        "<logs>/manifest.log",
    benchmark:
        "<benchmarks>/manifest.tsv"
    resources:
        mem_mb=200,
    params:
        image=recipe(),
    shell:
        r"""
        python scripts/manifest.py \
            --log {log:q} \
            --states {input.states:q} \
            --out {output.sidecar:q}
        """
