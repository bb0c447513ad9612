"""A run as one self-contained HTML page: no request leaves it, no foreign text becomes markup."""

from __future__ import annotations

from longstride.report import (
    anchors,
    appendix,
    audit,
    benchmark,
    context,
    curves,
    dag_figure,
    figures,
    gates,
    header,
    ladder,
    rollouts,
    states,
    timeline,
)
from longstride.report.markup import Safe, join, raw_script, tag
from longstride.report.page import head
from longstride.report.record import collected
from longstride.report.script import SCRIPT
from longstride.report.tree import build
from schemas.run import RunRecord

SECTIONS = (
    ("dag", "Pipeline"),
    ("timeline", "Timeline"),
    ("gates", "Gates"),
    ("ladder", "Ladder"),
    ("curves", "Curves"),
    ("audit", "Audit"),
    ("context", "Context"),
    ("benchmark", "Benchmark"),
    ("rollouts", "Rollouts"),
    ("tasks", "Tasks"),
    ("recipe", "Recipe"),
    ("provenance", "Provenance"),
)


def render_report(record: RunRecord) -> str:
    """Return the page of a run in any state.

    The page carries a content security policy that forbids every request and every script but its
    own, so that escaping is not the only defence against what a model or a data set wrote.
    """
    run = collected(record)
    tree = build(run.tasks, run.verdict_tasks)
    places = anchors.make(run, tree)
    warned = sum(gates.outcome(v)[0] == "warn" for v in run.verdicts)
    subtitle = {
        "dag": "Hover a task for its details; select it to go to its verdict or its record.",
        "gates": f"{figures.plural(len(run.verdicts), 'verdict')}, {warned} with warnings. "
        "Failed gates are open.",
        "curves": "Shaded bands are stages and rounds. Hover for values.",
        "context": "What the longer window is worth: each extension stage before its first step "
        "(the parent checkpoint as it was) and after its last.",
        "audit": "What updates do to the first token of reflection words, and to all others. An "
        "off-policy round is an update of a generation batch: the first is on-policy. A PPO clip "
        "would have dropped the tokens that the second chart counts; CISPO keeps them.",
        "rollouts": "Tokens are coloured by the importance weight of the last update that used "
        "them. Hover a token for its probabilities.",
    }
    content = {
        "dag": [dag_figure.draw(run, tree, places), dag_figure.key()],
        "timeline": [timeline.draw(run, tree, places)],
        "gates": [gates.draw(run, places)],
        "ladder": [ladder.draw(run.ladder)],
        "curves": [curves.draw(run)],
        "audit": [audit.draw(run)],
        "context": [context.draw(run)],
        "benchmark": [benchmark.draw(run)],
        "rollouts": [rollouts.draw(run)],
        "tasks": [appendix.tasks(run, tree, places)],
        "recipe": [appendix.recipe(run)],
        "provenance": [appendix.provenance(run), appendix.artifacts(tree)],
    }
    sections = [
        tag("section", tag("h2", title),
            tag("p", subtitle[key], class_="lead") if key in subtitle else None,
            *content[key], id=key)
        for key, title in SECTIONS
    ]  # fmt: skip
    body = tag(
        "body",
        states.definitions(),
        _navigation(run.name, run.state),
        tag("main", header.draw(run, tree, places), *sections),
        tag("div", id="tip", role="status"),
        raw_script(SCRIPT),
    )
    top = head(f"{run.name}: {states.word(run.state).lower()}")
    return "<!doctype html>\n" + tag("html", top, body, lang="en") + "\n"


def _navigation(name: str, state: str) -> Safe:
    links = [tag("a", title, href=f"#{key}") for key, title in SECTIONS]
    return tag(
        "nav",
        tag("a", states.icon(states.tone(state)), figures.shorten(name, 28), href="#top",
            class_="home"),
        join(*links),
    )  # fmt: skip
