"""The target as a plain checkpoint.

INPUT: what `target.source` names. OUTPUT: <results>/target/.
"""


rule target:
    output:
        sidecar="<results>/target/target.json",
    log:
        "<logs>/target.log",
    benchmark:
        "<benchmarks>/target.tsv"
    resources:
        mem_mb=2000,
    params:
        settings=CONFIG.target.as_json(),
        contract=VERSIONS["target"],
    shell:
        r"""
        python scripts/target.py \
            --log {log:q} \
            --settings {params.settings:q} \
            --out $(dirname {output.sidecar:q})
        """
