"""A data-quality gate: measure, validate with Great Expectations, decide, and block if need be."""

from kfp import dsl

from components.base import component


@component
def quality_gate(
    code_digest: str,
    edge: str,
    stage: str,
    recipe: dsl.Input[dsl.Artifact],
    subject: dsl.Input[dsl.Artifact],
    verdict: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    reference: dsl.Input[dsl.Artifact] = None,
) -> None:
    """Fail with QualityGateBlocked when a check of severity `block` fails."""
    from pathlib import Path

    from longstride.quality.gate import run_gate
    from longstride.quality.overrides import find_override
    from longstride.recipe.resolved import open_recipe

    decision = run_gate(
        edge,
        stage,
        open_recipe(recipe.path),
        Path(subject.path),
        Path(reference.path) if reference else None,
        Path(verdict.path),
        Path(report.path),
        find_override(edge, stage),
    )
    for check in decision.checks:
        if isinstance(check.observed, (int, float)):
            metrics.log_metric(check.name, float(check.observed))
    verdict.metadata.update({"passed": decision.passed, "checks": len(decision.checks)})
