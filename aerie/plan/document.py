"""`plan.json`: the plan with its problems, as `schemas/plan.schema.json` describes it."""

from dataclasses import asdict
from typing import Any

from aerie.contracts import VERSIONS
from aerie.plan.estimate import Plan
from aerie.plan.options import Problem

_DIGITS = 4


def document(plan: Plan, problems: tuple[Problem, ...]) -> dict[str, Any]:
    """The content of `plan.json`. The same configuration and facts give the same content."""
    content = asdict(plan)
    shape, source = plan.shape.model_dump(), content.pop("shape_source")
    del content["shape"]
    storage = content["storage"]
    for codec in plan.storage.states:
        storage.setdefault("needed", {})[codec] = asdict(plan.storage.needed(codec))
        storage.setdefault("fits", {})[codec] = plan.storage.fits(codec)
    rounded: dict[str, Any] = _rounded(
        {
            **content,
            "artifact": "plan",
            "contract": VERSIONS["plan"],
            "feasible": not problems,
            "problems": [asdict(problem) for problem in problems],
            "target": {"name": plan.target, **shape, "source": source},
            "totals": {
                "take": sum(entry.take for entry in plan.entries),
                "prompts": plan.prompts,
                "parts": plan.parts,
                "samples": plan.samples,
                "thinking_share": plan.thinking_share,
                "tokens": asdict(plan.tokens),
                "basis": plan.basis,
                "hours": asdict(plan.hours),
                "hours_on_hosts": asdict(plan.hours_on_hosts),
                "gpu_hours": asdict(plan.gpu_hours),
            },
        }
    )
    return rounded


def _rounded(value: Any) -> Any:
    """Numbers as they are worth writing: counts whole, shares and hours to four digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return round(value) if abs(value) >= 1e6 else round(value, _DIGITS)
    return value
