"""File contracts: one module owns each format. A version is bumped when a file's meaning changes.

Costly phases take their version as a parameter instead of their code as an input: refactoring
rebuilds nothing, a new meaning rebuilds everything that carries it. `tests/unit/test_golden.py`
fails when a meaning changed and its number did not.
"""

VERSIONS = {
    "scout": 1,
    "plan": 1,
    "target": 1,
    "source": 1,
    "candidates": 2,
    "prompts": 2,
    "overlap": 1,
    "responses": 2,
    "counts": 1,
    "map": 1,
    "states": 2,
    "manifest": 1,
    "draft": 1,
    "rolling": 1,
    "bench": 2,
    "scaling": 1,
    "map_study": 1,
    "mix_study": 1,
    "lock": 2,
}
