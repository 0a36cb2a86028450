"""Prompts: every row of a dataset becomes a candidate or a reject; candidates are selected in parts.

INPUT: datasets, local or from the Hub. OUTPUT: <results>/sources/<dataset>/ for those of the Hub,
<results>/candidates/<dataset>/, <results>/prompts/<dataset>/.
The take is a parameter of the selection alone, so that growing it reads no dataset again.
"""


# Its code is no input: an edit of Aerie must not ask the network for anything.
rule source:
    output:
        "<results>/sources/{dataset}/source.json",
    log:
        "<logs>/source/{dataset}.log",
    benchmark:
        "<benchmarks>/source/{dataset}.tsv"
    localrule: True
    resources:
        mem_mb=1000,
    params:
        repo=hub_repo,
        revision=hub_revision,
        files=wanted_files,
        columns=columns("columns"),
        optional=columns("optional"),
        contract=VERSIONS["source"],
    shell:
        r"""
        python scripts/source.py \
            --log {log:q} \
            --repo {params.repo:q} \
            --revision {params.revision:q} \
            --files {params.files:q} \
            --columns {params.columns:q} \
            --optional {params.optional:q} \
            --out {output:q}
        """


rule candidates:
    input:
        source=source_files,
        target="<results>/target/target.json",
        benchmarks=BENCHMARKS,
        code=code("candidates"),
    output:
        sidecar="<results>/candidates/{dataset}/candidates.json",
        table="<results>/candidates/{dataset}/candidates.parquet",
        index="<results>/candidates/{dataset}/candidates.safetensors",
        rejects="<results>/candidates/{dataset}/rejects.parquet",
    log:
        "<logs>/candidates/{dataset}.log",
    benchmark:
        "<benchmarks>/candidates/{dataset}.tsv"
    threads: reading_processes
    resources:
        mem_mb=lambda wildcards, threads: 1000 * threads,
    params:
        image=recipe(),
        adapter=dataset("adapter"),
        path=source_path,
        origin=origin,
        files=wanted_files,
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
            {params.origin} \
            --files {params.files:q} \
            --benchmarks {input.benchmarks:q} \
            --threads {threads} \
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
        index=ancient("<results>/candidates/{dataset}/candidates.safetensors"),
        rejects=ancient("<results>/candidates/{dataset}/rejects.parquet"),
        earlier=earlier("candidates.json"),
        earlier_indexes=ancient(earlier("candidates.safetensors")),
        code=code("prompts"),
    output:
        folder=directory("<results>/prompts/{dataset}"),
    log:
        "<logs>/prompts/{dataset}.log",
    benchmark:
        "<benchmarks>/prompts/{dataset}.tsv"
    resources:
        mem_mb=lambda wildcards, input: max(500, int(2 * input.size_mb)),
    params:
        image=recipe(),
        take=dataset("take"),
        part_size=CONFIG.prompts.part_size,
        thinking=thinking_share,
        held_out=CONFIG.bench.held_out,
        seed=CONFIG.seed,
    shell:
        r"""
        python scripts/prompts.py \
            --log {log:q} \
            --take {params.take} \
            --part-size {params.part_size} \
            --thinking-share {params.thinking} \
            --held-out {params.held_out} \
            --seed {params.seed} \
            --candidates {input.candidates:q} \
            --earlier {input.earlier:q} \
            --out {output.folder:q}
        """


rule overlap:
    input:
        candidates=expand(
            "<results>/candidates/{dataset}/candidates.json", dataset=DATASETS
        ),
        selections=of_datasets("selection.json"),
        code=code("overlap"),
    output:
        json="<results>/overlap/overlap.json",
        page="<results>/overlap/overlap.md",
    log:
        "<logs>/overlap.log",
    benchmark:
        "<benchmarks>/overlap.tsv"
    resources:
        mem_mb=200,
    params:
        image=recipe(),
    shell:
        r"""
        python scripts/overlap.py \
            --log {log:q} \
            --candidates {input.candidates:q} \
            --selections {input.selections:q} \
            --out {output.json:q}
        """


# Prompts of the mix that are measured and never trained on: a suite like any other.
rule mix_suite:
    input:
        of_datasets("heldout.jsonl"),
    output:
        "<results>/suites/mix.jsonl",
    log:
        "<logs>/mix_suite.log",
    benchmark:
        "<benchmarks>/mix_suite.tsv"
    resources:
        mem_mb=100,
    shell:
        "cat {input:q} > {output:q}.part 2> {log:q} && mv {output:q}.part {output:q}"
