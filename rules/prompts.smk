"""Prompts: every row of a dataset becomes a candidate or a reject; candidates are selected in parts.

INPUT: downloaded datasets. OUTPUT: <results>/candidates/<dataset>/, <results>/prompts/<dataset>/.
The take is a parameter of the selection alone, so that growing it reads no dataset again.
"""


rule candidates:
    input:
        source=source_files,
        target="<results>/target/target.json",
        code=code("candidates"),
    output:
        sidecar="<results>/candidates/{dataset}/candidates.json",
        table="<results>/candidates/{dataset}/candidates.parquet",
        rejects="<results>/candidates/{dataset}/rejects.parquet",
    log:
        "<logs>/candidates/{dataset}.log",
    benchmark:
        "<benchmarks>/candidates/{dataset}.tsv"
    resources:
        mem_mb=1000,
    params:
        adapter=dataset("adapter"),
        path=dataset("path"),
        mode=dataset("mode"),
        share=dataset("max_rejected_share"),
        max_tokens=CONFIG.prompts.max_tokens,
        max_turns=CONFIG.prompts.max_turns,
        seed=CONFIG.seed,
    shell:
        r"""
        python scripts/candidates.py \
            --log {log:q} \
            --name {wildcards.dataset} \
            --adapter {params.adapter:q} \
            --path {params.path:q} \
            --mode {params.mode} \
            --max-rejected-share {params.share} \
            --max-tokens {params.max_tokens} \
            --max-turns {params.max_turns} \
            --seed {params.seed} \
            --target {input.target:q} \
            --out $(dirname {output.sidecar:q})
        """


checkpoint prompts:
    input:
        candidates="<results>/candidates/{dataset}/candidates.json",
        table=ancient("<results>/candidates/{dataset}/candidates.parquet"),
        rejects=ancient("<results>/candidates/{dataset}/rejects.parquet"),
        earlier=earlier,
        code=code("prompts"),
    output:
        folder=directory("<results>/prompts/{dataset}"),
    log:
        "<logs>/prompts/{dataset}.log",
    benchmark:
        "<benchmarks>/prompts/{dataset}.tsv"
    resources:
        mem_mb=500,
    params:
        take=dataset("take"),
        part_size=CONFIG.prompts.part_size,
    shell:
        r"""
        python scripts/prompts.py \
            --log {log:q} \
            --take {params.take} \
            --part-size {params.part_size} \
            --candidates {input.candidates:q} \
            --earlier {input.earlier:q} \
            --out {output.folder:q}
        """
