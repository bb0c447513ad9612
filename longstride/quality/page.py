"""The verdict as one self-contained HTML page: no script, no network, every value escaped."""

from __future__ import annotations

from html import escape

from longstride.quality.suites import Suite
from schemas.verdict import EDGE_TITLES, Check, Profile, Verdict

_STYLE = """
:root{color-scheme:light dark;--ok:#1a7f37;--warn:#9a6700;--block:#cf222e;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.45rem .6rem;border-bottom:1px solid var(--line)}
td.value,code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}
small{opacity:.75;display:block}
.badge{color:#fff;border-radius:.4rem;padding:.1rem .5rem;font-size:.85em;white-space:nowrap}
.ok{background:var(--ok)}.warn{background:var(--warn)}.block{background:var(--block)}
.info{background:#57606a}
"""


def verdict_page(
    verdict: Verdict,
    subject: str,
    profile: Profile | None = None,
    before: Profile | None = None,
    suite: Suite | None = None,
) -> str:
    """Render a verdict; `subject` is the name of the measured artifact."""
    state = _badge("ok", "passed") if verdict.passed else _badge("block", "blocked")
    title = f"{verdict.edge} {EDGE_TITLES[verdict.edge]}, stage {verdict.stage}"
    told = f"{len(verdict.checks)} checks on {verdict.rows} rows of {escape(subject)}"
    lines = [f"<p>{state} {told}</p>"]
    if verdict.note:
        lines.append(f"<p>{escape(verdict.note)}</p>")
    if verdict.override is not None:
        lines.append(
            f"<p>{_badge('warn', 'overridden')} by {escape(verdict.override.operator)}: "
            f"{escape(verdict.override.reason)}</p>"
        )
    if verdict.checks:
        lines.append(_table(verdict.checks))
    lines.append(
        f"<p><small>suite {escape(verdict.suite_digest)}<br>"
        f"subject {escape(verdict.subject_digest)}</small></p>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(lines)}</body></html>\n"
    )


def _table(checks: list[Check]) -> str:
    order = {"block": 0, "warn": 1, "info": 2}
    shown = sorted(checks, key=lambda check: (check.passed, order[check.severity]))
    head = "".join(f"<th>{name}</th>" for name in ("", "check", "observed", "threshold"))
    rows = "".join(_row(check) for check in shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(check: Check) -> str:
    badge = _badge("ok", "ok") if check.passed else _badge(check.severity, _failed(check))
    offenders = (
        f"<small>rows: <code>{escape(', '.join(check.offenders))}</code></small>"
        if check.offenders
        else ""
    )
    return (
        f"<tr><td>{badge}</td>"
        f"<td><b>{escape(check.name)}</b><small>{escape(check.description)}</small>{offenders}</td>"
        f'<td class="value">{escape(_value(check.observed))}</td>'
        f'<td class="value">{escape(check.threshold)}'
        f"<small>{escape(check.severity)}; {escape(check.origin)}</small></td></tr>"
    )


def _failed(check: Check) -> str:
    return {"block": "blocks", "warn": "warning", "info": "noted"}[check.severity]


def _value(value: float | int | str | bool | None) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _badge(kind: str, text: str) -> str:
    return f'<span class="badge {kind}">{text}</span>'
