"""Draft, with `rolling` in the configuration: its states are captured as it is trained.

INPUT: responses, the map. OUTPUT: <results>/draft/<run>/, with rolling.json. States come and go in
<results>/states/ within the budget, and are no files that another rule can need. Those of samples held
out stay in <results>/journal/rolling/<run>/ until the draft is there.
"""


rule draft:
    input:
        responses=of_all_parts("<results>/responses/{dataset}/{part}.json"),
        tables=ancient(of_all_parts("<results>/responses/{dataset}/{part}.parquet")),
        map=the_map,
        target="<results>/target/target.json",
    output:
        sidecar="<results>/draft/{run}/draft.json",
        config="<results>/draft/{run}/config.json",
        weights="<results>/draft/{run}/model.safetensors",
        train="<results>/draft/{run}/train.jsonl",
        eval="<results>/draft/{run}/eval.json",
        rolling="<results>/draft/{run}/rolling.json",
    log:
        "<logs>/draft/{run}.log",
    benchmark:
        "<benchmarks>/draft/{run}.tsv"
    # The image of the engine trains too.
    container:
        image("states")
    threads: all_cores
    resources:
        mem_mb=lambda wildcards: 2500 * ranks(wildcards),
        gpu=lambda wildcards: GPUS * ranks(wildcards),
    params:
        trainer=trainer,
        image=recipe("states"),
        settings=lambda wildcards: CONFIG.drafts[wildcards.run].as_json(),
        states=CONFIG.states.as_json(),
        engine=CONFIG.engine,
        answers="--greedy" if CONFIG.responses.temperature == 0 else "--sampled",
        work=CONFIG.work,
        logs=f"{CONFIG.work}/logs/rolling/{{run}}",
        contract=(VERSIONS["states"], VERSIONS["draft"]),
    shell:
        r"""
        python scripts/rolling.py \
            --log {log:q} \
            --threads {threads} \
            --responses {input.responses:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --settings {params.settings:q} \
            --states-settings {params.states:q} \
            --engine {params.engine} \
            {params.answers} \
            --trainer {params.trainer:q} \
            --states {params.work:q}/states \
            --journal {params.work:q}/journal/rolling/{wildcards.run} \
            --checkpoints {params.work:q}/journal/draft/{wildcards.run} \
            --tracking {params.work:q}/tracking/{wildcards.run} \
            --logs {params.logs:q} \
            --out {output.sidecar:q}
        """
