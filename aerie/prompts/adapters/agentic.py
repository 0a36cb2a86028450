"""Issues of repositories, as tasks and as the trajectories of agents that worked on them."""

import re

from aerie.contracts.prompts import Flag
from aerie.prompts.adapters.base import Category
from aerie.prompts.adapters.families import Issue, Statement


class SweAgentTrajectories(Issue):
    # 80K rows are runs over some 6.6K issues.
    id = "nebius/SWE-agent-trajectories"
    licence = "CC-BY-4.0"
    attribution = "Nebius, SWE-agent-trajectories"
    files = ("data/train-*.parquet",)
    columns = ("trajectory", "instance_id")
    issue = re.compile(r"^ISSUE:(?P<issue>.*)^INSTRUCTIONS:", re.MULTILINE | re.DOTALL)


class DeepSweTrajectories(Issue):
    id = "SWE-Factory/DeepSWE-Agent-Kimi-K2-Trajectories-2.8K"
    category = Category.FAMILY
    licence = "unknown"
    attribution = "SWE-Factory, DeepSWE-Agent-Kimi-K2-Trajectories-2.8K"
    files = ("*.jsonl",)
    columns = ("messages",)
    identity = None
    # By Kimi-K2 through an XML protocol: not an answer that Kimi-K2.5 would give token for token.
    notes = frozenset({Flag.NOT_TARGET_NATIVE})


class SweRebenchOpenHands(Issue):
    id = "nebius/SWE-rebench-openhands-trajectories"
    licence = "CC-BY-4.0"
    attribution = "Nebius, SWE-rebench-openhands-trajectories"
    files = ("**/*.parquet",)
    columns = ("trajectory", "instance_id")
    optional = ("tools",)
    id_column = "trajectory_id"
    may_be_bare = True


class OpenSweTraces(Issue):
    # Its issues are those of SWE-rebench-V2.
    id = "nvidia/Open-SWE-Traces"
    licence = "CC-BY-4.0"
    attribution = "NVIDIA, Open-SWE-Traces"
    files = ("**/*.parquet",)
    columns = ("instance_id",)
    optional = ("trajectory", "messages", "tools", "language")
    one_of = ("trajectory", "messages")
    stratum = "language"
    id_column = "trajectory_id"


class SweSmithTrajectories(Issue):
    id = "SWE-bench/SWE-smith-trajectories"
    licence = "MIT"
    attribution = "SWE-bench, SWE-smith-trajectories"
    # `xml` and `ticks` are the same tasks in other notations.
    files = ("data/tool-*.parquet",)
    columns = ("messages", "instance_id")
    id_column = "traj_id"


class NemotronSwe(Issue):
    # The licence of each row is in a column; the card names CC-BY-4.0 and others.
    id = "nvidia/Nemotron-SFT-SWE-v3"
    licence = "unknown"
    attribution = "NVIDIA, Nemotron-SFT-SWE-v3"
    files = ("**/*.parquet",)
    columns = ("messages",)
    optional = ("tools",)
    id_column = "uuid"
    identity = None
    may_be_bare = True


class SweRebenchV2(Statement):
    id = "nebius/SWE-rebench-V2"
    licence = "CC-BY-4.0"
    attribution = "Nebius, SWE-rebench-V2"
    files = ("data/train-*.parquet",)
    columns = ("problem_statement", "instance_id")
    optional = ("language",)
    stratum = "language"


class SweSmith(Statement):
    # About 40K of its 50K tasks have no issue text.
    id = "SWE-bench/SWE-smith"
    licence = "MIT"
    attribution = "SWE-bench, SWE-smith"
    files = ("data/train-*.parquet",)
    columns = ("problem_statement", "instance_id")
