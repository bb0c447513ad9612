"""The exit handler: a report whatever happened."""

from kfp import dsl

from components.base import component


@component
def write_report(
    status: dsl.PipelineTaskFinalStatus, pipeline_root: str, report: dsl.Output[dsl.HTML]
) -> None:
    """Collect what the run left and write the report."""
    from pathlib import Path

    from longstride.report.exit_handler import report_from_exit_handler

    report_from_exit_handler(
        pipeline_root,
        state=status.state,
        error=status.error_message or "",
        out=Path(report.path),
    )
