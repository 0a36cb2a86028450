"""Draft: training on states, through the map.

INPUT: the manifest of all states, the map. OUTPUT: <results>/draft/<run>/. Checkpoints to resume from lie outside
the outputs, and are removed when the draft is there.
"""


rule draft:
    input:
        states=the_states,
        map=the_map,
        target="<results>/target/target.json",
    output:
        sidecar="<results>/draft/{run}/draft.json",
        config="<results>/draft/{run}/config.json",
        weights="<results>/draft/{run}/model.safetensors",
        train="<results>/draft/{run}/train.jsonl",
        eval="<results>/draft/{run}/eval.json",
    log:
        "<logs>/draft/{run}.log",
    benchmark:
        "<benchmarks>/draft/{run}.tsv"
    container:
        image("draft")
    threads: all_cores
    resources:
        mem_mb=lambda wildcards: 2500 * ranks(wildcards),
        gpu=lambda wildcards: GPUS * ranks(wildcards),
    params:
        trainer=trainer,
        image=recipe("draft"),
        settings=lambda wildcards: CONFIG.drafts[wildcards.run].as_json(),
        checkpoints=f"{CONFIG.work}/journal/draft/{{run}}",
        tracking=f"{CONFIG.work}/tracking/{{run}}",
        contract=VERSIONS["draft"],
    shell:
        r"""
        {params.trainer} scripts/draft.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --states {input.states:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --checkpoints {params.checkpoints:q} \
            --tracking {params.tracking:q} \
            --out {output.sidecar:q}
        """
