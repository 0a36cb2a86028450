"""Scaling: whether more data would help. Map study: whether another size of the map would. Mix study:
which dataset helps which domain.

INPUT: the manifest of all states, the map, the draft. OUTPUT: <results>/scaling/scaling.json,
<results>/map_study/map_study.json, <results>/mix_study/mix_study.json. Not a part of a build: `make
scaling`, `make map-study` and `make mix-study` ask for them. States are read where they lie. The recipe is that of the first run of `drafts`, whose draft is
the point of all data.
"""


wildcard_constraints:
    divisor="[0-9]+",
    seed="[0-9]+",


localrules:
    scaling,
    map_study,
    mix_study,


rule scaling:
    input:
        "<results>/scaling/scaling.json",


rule map_study:
    input:
        "<results>/map_study/map_study.json",


rule mix_study:
    input:
        "<results>/mix_study/mix_study.json",


rule scaling_point:
    input:
        states=the_states,
        map=the_map,
        target="<results>/target/target.json",
    output:
        "<results>/scaling/points/{divisor}-{seed}.json",
    log:
        "<logs>/scaling/{divisor}-{seed}.log",
    benchmark:
        "<benchmarks>/scaling/{divisor}-{seed}.tsv"
    container:
        image("draft")
    threads: all_cores
    resources:
        mem_mb=lambda wildcards: 2500 * ranks(wildcards),
        gpu=lambda wildcards: GPUS * ranks(wildcards),
    params:
        trainer=trainer,
        image=recipe("draft"),
        settings=seeded,
        checkpoints=f"{CONFIG.work}/journal/scaling/{{divisor}}-{{seed}}",
        contract=(VERSIONS["draft"], VERSIONS["scaling"]),
    shell:
        r"""
        {params.trainer} scripts/scaling_point.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --divisor {wildcards.divisor} \
            --states {input.states:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --checkpoints {params.checkpoints:q} \
            --out {output:q}
        """


# All data have a draft already: it is judged, not trained.
rule scaling_whole:
    input:
        states=the_states,
        map=the_map,
        target="<results>/target/target.json",
        draft=f"<results>/draft/{SCALED}/draft.json",
    output:
        "<results>/scaling/points/1-0.json",
    log:
        "<logs>/scaling/1-0.log",
    benchmark:
        "<benchmarks>/scaling/1-0.tsv"
    container:
        image("draft")
    threads: all_cores
    resources:
        mem_mb=2500,
        gpu=GPUS,
    params:
        image=recipe("draft"),
        settings=CONFIG.drafts[SCALED].as_json(),
        contract=(VERSIONS["draft"], VERSIONS["scaling"]),
    shell:
        r"""
        python scripts/scaling_point.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --states {input.states:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --draft {input.draft:q} \
            --out {output:q}
        """


ruleorder: scaling_whole > scaling_point


rule scaling_result:
    input:
        points=expand("<results>/scaling/points/{point}.json", point=scaling_points()),
        states=the_states,
        code=code("scaling"),
    output:
        "<results>/scaling/scaling.json",
    log:
        "<logs>/scaling/scaling.log",
    benchmark:
        "<benchmarks>/scaling/scaling.tsv"
    resources:
        mem_mb=500,
    params:
        image=recipe(),
        settings=CONFIG.scaling.as_json(),
        gpus=GPUS * CONFIG.plan.gpus_per_host,
    shell:
        r"""
        python scripts/scaling.py \
            --log {log:q} \
            --settings {params.settings:q} \
            --points {input.points:q} \
            --states {input.states:q} \
            --work "$(dirname "$(dirname {input.states:q})")" \
            --gpus {params.gpus} \
            --out {output:q}
        """


rule map_study_result:
    input:
        states=the_states,
        map=the_map,
        counts=expand("<results>/vocab/counts/{dataset}.json", dataset=DATASETS),
        tables=ancient(
            expand("<results>/vocab/counts/{dataset}.safetensors", dataset=DATASETS)
        ),
        target="<results>/target/target.json",
        draft=f"<results>/draft/{SCALED}/draft.json",
        code=code("map_study"),
    output:
        "<results>/map_study/map_study.json",
    log:
        "<logs>/map_study.log",
    benchmark:
        "<benchmarks>/map_study.tsv"
    container:
        image("draft")
    threads: all_cores
    resources:
        mem_mb=2500,
        gpu=GPUS,
    params:
        image=recipe("draft"),
        settings=CONFIG.map_study.as_json(),
        recipe=CONFIG.drafts[SCALED].as_json(),
    shell:
        r"""
        python scripts/map_study.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --recipe {params.recipe:q} \
            --states {input.states:q} \
            --map {input.map:q} \
            --counts {input.counts:q} \
            --target {input.target:q} \
            --draft {input.draft:q} \
            --out {output:q}
        """


# Its fraction of the whole mix is a point of the scaling curve, and made by that rule.
rule mix_point:
    input:
        states=the_states,
        map=the_map,
        target="<results>/target/target.json",
    output:
        "<results>/mix_study/points/{dataset}-{seed}.json",
    log:
        "<logs>/mix_study/{dataset}-{seed}.log",
    benchmark:
        "<benchmarks>/mix_study/{dataset}-{seed}.tsv"
    container:
        image("draft")
    threads: all_cores
    resources:
        mem_mb=lambda wildcards: 2500 * ranks(wildcards),
        gpu=lambda wildcards: GPUS * ranks(wildcards),
    params:
        trainer=trainer,
        image=recipe("draft"),
        settings=seeded,
        divisor=CONFIG.mix_study.divisor,
        checkpoints=f"{CONFIG.work}/journal/mix_study/{{dataset}}-{{seed}}",
        contract=(VERSIONS["draft"], VERSIONS["scaling"]),
    shell:
        r"""
        {params.trainer} scripts/scaling_point.py \
            --log {log:q} \
            --threads {threads} \
            --settings {params.settings:q} \
            --divisor {params.divisor} \
            --without {wildcards.dataset} \
            --states {input.states:q} \
            --map {input.map:q} \
            --target {input.target:q} \
            --checkpoints {params.checkpoints:q} \
            --out {output:q}
        """


rule mix_study_result:
    input:
        points=expand(
            f"<results>/scaling/points/{CONFIG.mix_study.divisor}-{{seed}}.json",
            seed=range(CONFIG.mix_study.seeds),
        ),
        without=expand(
            "<results>/mix_study/points/{dataset}-{seed}.json",
            dataset=DATASETS,
            seed=range(CONFIG.mix_study.seeds),
        ),
        code=code("mix_study"),
    output:
        "<results>/mix_study/mix_study.json",
    log:
        "<logs>/mix_study/mix_study.log",
    benchmark:
        "<benchmarks>/mix_study/mix_study.tsv"
    resources:
        mem_mb=500,
    params:
        image=recipe(),
    shell:
        r"""
        python scripts/mix_study.py \
            --log {log:q} \
            --points {input.points:q} \
            --without {input.without:q} \
            --out {output:q}
        """
