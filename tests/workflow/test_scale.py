"""Snakemake thinks for seconds, not minutes, about the production configuration."""

from pathlib import Path

import pytest

from aerie.config import ROOT
from benchmarks.dag.measure import LIMITS, measure

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def test_production_configuration(tmp_path: Path) -> None:
    """CPU seconds: Snakemake is one process, and other tests may run beside this one."""
    found = measure(tmp_path / "dag", ROOT / "config.yaml", scale=1, repeats=1)
    assert found["prompts"] >= 100_000
    assert found["jobs"] > 2 * found["parts"]
    dry_run, no_op = LIMITS[1]
    assert found["dry_run"]["cpu_s"] <= dry_run
    assert found["no_op"]["cpu_s"] <= no_op
