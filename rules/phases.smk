"""All of one phase, by name: `snakemake -- all_states`. `make all` asks for one after the other.

Between them a server is started once and stopped: scripts/phases.
"""


localrules:
    all_prompts,
    all_responses,
    all_map,
    all_states,
    all_drafts,
    all_bench,


rule all_prompts:
    input:
        of_datasets("selection.json"),


rule all_responses:
    input:
        of_all_parts("<results>/responses/{dataset}/{part}.json"),


rule all_map:
    input:
        the_map,


rule all_states:
    # With `rolling` those are captured with the drafts.
    input:
        states_that_stay,


rule all_drafts:
    input:
        the_drafts,


rule all_bench:
    input:
        expand(
            "<results>/bench/{run}/{suite}.json",
            run=CONFIG.drafts,
            suite=CONFIG.bench.names,
        ),
