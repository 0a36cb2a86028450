"""Plan: what the build needs and whether it fits. `snakemake --force plan`.

INPUT: whatever earlier runs left, and the disk. OUTPUT: <results>/plan/plan.json, plan.md.
Nothing depends on it. It reads what no rule tracks, so it is forced; and it declares no output,
since Snakemake would delete the files of a plan that is refused.
"""


localrules:
    plan,


rule plan:
    log:
        "<logs>/plan.log",
    benchmark:
        "<benchmarks>/plan.tsv"
    resources:
        mem_mb=500,
    params:
        # Not sorted: the order of the mix is its priority.
        settings=CONFIG.model_dump_json(),
        out=f"{CONFIG.work}/plan/plan.json",
    shell:
        r"""
        python scripts/plan.py \
            --log {log:q} \
            --settings {params.settings:q} \
            --out {params.out:q}
        """
