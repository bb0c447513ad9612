"""The verdict as one self-contained HTML page: no script, no network, every value escaped."""

from __future__ import annotations

from html import escape

from longstride.quality.histogram import histogram
from longstride.quality.suites import Suite
from schemas.verdict import EDGE_TITLES, Check, Profile, Verdict

_STYLE = """
:root{color-scheme:light dark;--line:#8884;
--ok:#1a7f37;--warn:#9a6700;--block:#cf222e;--bar:#5b8def}
@media (prefers-color-scheme:dark){:root{--ok:#238636;--warn:#9e6a03;--block:#da3633;--bar:#6ea8fe}}
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.45rem .6rem;border-bottom:1px solid var(--line)}
td.value,code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}
td.value{min-width:8rem}td.number{text-align:right;font-variant-numeric:tabular-nums}
small{opacity:.75;display:block}
.badge{color:#fff;border-radius:.4rem;padding:.1rem .5rem;font-size:.85em;white-space:nowrap}
.ok{background:var(--ok)}.warn{background:var(--warn)}.block{background:var(--block)}
.info,.none{background:#57606a}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(18rem,1fr));gap:1rem 1.5rem}
figure{margin:0}svg{width:100%;height:auto;display:block}
svg rect{fill:var(--bar)}svg text{font-size:10px;fill:currentColor;opacity:.75}
svg .axis{stroke:currentColor;opacity:.4}
svg line.bound{stroke:var(--block);stroke-width:1.5;stroke-dasharray:4 3}
svg text.bound{fill:var(--block);opacity:1}
details summary{cursor:pointer}
@media (max-width:40rem){td.value{min-width:0}th:nth-child(4),td:nth-child(4){display:none}}
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
    if profile is not None:
        if before is not None:
            lines.append(_comparison(profile, before))
        elif verdict.checks:
            lines.append(
                "<p>No blessed run to compare with; <code>longstride bless RUN</code> makes one."
                "</p>"
            )
        lines.append(_figures(profile, suite))
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


def _comparison(profile: Profile, before: Profile) -> str:
    """Numbers of this subject beside those of the last blessed one; the largest changes first."""
    rows = []
    for name, value in profile.facts.items():
        if name in before.facts:
            was = before.facts[name]
            change = abs(value - was) / max(abs(was), abs(value), 1e-12)
            rows.append((change, name, was, value))
    rows.sort(key=lambda row: (-row[0], row[1]))
    told = "".join(
        f"<tr><td>{escape(name)}</td><td class=number>{was:.5g}</td>"
        f"<td class=number>{value:.5g}</td><td class=number>{value - was:+.3g}</td></tr>"
        for _, name, was, value in rows
    )
    head = "".join(f"<th>{name}</th>" for name in ("number", "blessed", "now", "change"))
    return (
        f"<h2>Against the last blessed run</h2><p><small>subject "
        f"{escape(before.subject_digest)}</small></p><details open><summary>{len(rows)} numbers, "
        f"the largest changes first</summary><table><thead><tr>{head}</tr></thead><tbody>{told}"
        "</tbody></table></details>"
    )


def _figures(profile: Profile, suite: Suite | None) -> str:
    """Histograms of columns with bounds, then of the other columns, folded away."""
    specs = suite.checks if suite is not None else []
    ruled: list[str] = []
    others: list[str] = []
    for name, column in profile.columns.items():
        own = [spec for spec in specs if spec.level == "rows" and spec.column == name]
        (ruled if own else others).append(histogram(name, column, own))
    parts = []
    if ruled:
        parts.append(
            "<h2>How measured values lie</h2><p><small>A dashed line is the bound of a rule."
            f"</small></p><div class=figures>{''.join(ruled)}</div>"
        )
    if others:
        parts.append(
            f"<details><summary>{len(others)} columns without a rule</summary>"
            f"<div class=figures>{''.join(others)}</div></details>"
        )
    return "".join(parts)


def _row(check: Check) -> str:
    if check.observed == "not applicable":
        badge = _badge("none", "not applicable")
    else:
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
