"""The run report: one self-contained HTML file made of a `RunRecord`."""

from longstride.report.collect import collect, collect_from_root, write_report
from longstride.report.render import render_report

__all__ = ["collect", "collect_from_root", "render_report", "write_report"]
