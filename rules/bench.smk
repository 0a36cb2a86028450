"""Bench: the draft against plain decoding, on prompts that nothing was trained on.

INPUT: a draft, a suite. OUTPUT: <results>/bench/<run>/<suite>.json.
"""


rule bench:
    input:
        draft=the_draft,
        suite=suite_file,
        target="<results>/target/target.json",
        code=code("bench"),
    output:
        result="<results>/bench/{run}/{suite}.json",
    log:
        "<logs>/bench/{run}/{suite}.log",
    benchmark:
        "<benchmarks>/bench/{run}/{suite}.tsv"
    container:
        image("bench")
    threads: all_cores
    resources:
        mem_mb=1500,
        gpu=GPUS,
    params:
        image=recipe("bench"),
        settings=CONFIG.bench.as_json(),
        engine=CONFIG.engine,
    shell:
        r"""
        python scripts/bench.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --run {wildcards.run} \
            --suite {wildcards.suite} \
            --prompts {input.suite:q} \
            --draft {input.draft:q} \
            --target {input.target:q} \
            --engine {params.engine} \
            --out {output.result:q}
        """
