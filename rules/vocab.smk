"""Vocab: what the target says is counted, and the most frequent tokens become the map.

INPUT: responses. OUTPUT: <results>/vocab/counts/<dataset>.json, <results>/vocab/map.json.
"""


rule counts:
    input:
        responses=of_parts("<results>/responses/{dataset}/{part}.json"),
        tables=ancient(of_parts("<results>/responses/{dataset}/{part}.parquet")),
        target="<results>/target/target.json",
        code=code("counts"),
    output:
        sidecar="<results>/vocab/counts/{dataset}.json",
        table="<results>/vocab/counts/{dataset}.safetensors",
    log:
        "<logs>/counts/{dataset}.log",
    benchmark:
        "<benchmarks>/counts/{dataset}.tsv"
    resources:
        mem_mb=500,
    params:
        image=recipe(),
    shell:
        r"""
        python scripts/counts.py \
            --log {log:q} \
            --responses {input.responses:q} \
            --target {input.target:q} \
            --out {output.sidecar:q}
        """


checkpoint map:
    input:
        counts=expand("<results>/vocab/counts/{dataset}.json", dataset=DATASETS),
        tables=ancient(
            expand("<results>/vocab/counts/{dataset}.safetensors", dataset=DATASETS)
        ),
        target="<results>/target/target.json",
        code=code("map"),
    output:
        sidecar="<results>/vocab/map.json",
        table="<results>/vocab/map.safetensors",
        coverage="<results>/vocab/coverage.json",
        t2d="<results>/vocab/t2d.pt",
        d2t="<results>/vocab/d2t.pt",
    log:
        "<logs>/map.log",
    benchmark:
        "<benchmarks>/map.tsv"
    resources:
        mem_mb=1000,
    params:
        image=recipe(),
        settings=CONFIG.vocab.as_json(),
    shell:
        r"""
        python scripts/map.py \
            --log {log:q} \
            --counts {input.counts:q} \
            --target {input.target:q} \
            --settings {params.settings:q} \
            --out {output.sidecar:q}
        """
