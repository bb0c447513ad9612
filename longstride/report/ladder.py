"""The window ladder: what each round measured and what the expansion gate made of it."""

from __future__ import annotations

from longstride.report import figures, states
from longstride.report.markup import Safe, join, tag
from longstride.report.scales import Scale, domain
from schemas.ladder import LadderEntry, LadderState

_TONES = {"expand": "ok", "complete": "ok", "hold": "wait", "remedy": "warn", "halt": "bad",
          "start": "run", "passed_through": "skip"}  # fmt: skip
WIDTH, HEIGHT = 1120, 306
LEFT, RIGHT = 56, 66
UPPER, LOWER = (34.0, 186.0), (214.0, 276.0)


def draw(ladder: LadderState | None) -> Safe:
    """A chart and a table, or a sentence when there was no round."""
    if ladder is None:
        return tag("p", "No round has reached the expansion gate yet.", class_="empty")
    tone = {"active": "run", "complete": "ok", "halted": "bad"}[ladder.status]
    cap = figures.number(ladder.is_weight_cap)
    state = tag(
        "p",
        states.pill(tone, f"Ladder {ladder.status}"),
        tag("span", f"window now {ladder.window:,} tokens"),
        tag("span", f"importance-weight cap {cap}"),
        tag("span", f"gradient clip {figures.number(ladder.grad_clip)}"),
        tag("span", figures.plural(ladder.remedies, "remedy").replace("remedys", "remedies")
            + " in a row"),
        class_="factline",
    )  # fmt: skip
    if not ladder.history:
        return state
    return join(state, _chart(ladder.history), _table(ladder.history))


def _chart(history: list[LadderEntry]) -> Safe:
    x = Scale(0, len(history), LEFT, WIDTH - RIGHT)
    lengths = [float(e.window) for e in history]
    lengths += [f for e in history if e.facts for f in (e.facts.length_p99, e.facts.length_p50)]
    high = domain(lengths, log=False, zero=True)[1]
    tokens = Scale(0.0, high, UPPER[1], UPPER[0])
    perplexities = [f for e in history if e.facts
                    for f in (e.facts.perplexity_first, e.facts.perplexity_last)]  # fmt: skip
    low, high = domain(perplexities, log=False)
    perplexity = Scale(low, high, LOWER[1], LOWER[0])
    svg = tag(
        "svg",
        _axis(tokens, "tokens", 4),
        _axis(perplexity, "perplexity", 3) if perplexities else None,
        *(_round(entry, index, x, tokens) for index, entry in enumerate(history)),
        *(_perplexity(entry, index, x, perplexity) for index, entry in enumerate(history)),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="ladder",
        role="img",
        aria_label="Window, output length and perplexity of each round",
    )
    legend = tag(
        "div",
        tag("span", tag("i", class_="key k-window"), "window"),
        tag("span", tag("i", class_="key k-p99"), "p99 of output length"),
        tag("span", tag("i", class_="key k-p50"), "median output length"),
        tag("span", tag("i", class_="key k-ppl"), "perplexity, first to last batch of the round"),
        class_="legend",
    )
    return tag("figure", tag("div", svg, class_="scroll"), legend, class_="wide-figure")


def _axis(scale: Scale, unit: str, count: int) -> Safe:
    parts = []
    for tick in scale.ticks(count):
        at = scale(tick)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", figures.number(tick), x=LEFT - 8, y=at + 3.5, class_="tick y"))
    top = min(scale.start, scale.end)
    parts.append(tag("text", unit, x=WIDTH - RIGHT + 8, y=top + 6, class_="tick unit"))
    return tag("g", *parts)


def _round(entry: LadderEntry, index: int, x: Scale, tokens: Scale) -> Safe:
    left, right = x(index) + 4, x(index + 1) - 4
    middle = (left + right) / 2
    tone = _TONES[entry.decision]
    top = tokens(entry.window)
    label = entry.decision.replace("_", " ")
    parts = [
        tag("rect", x=left, y=top, width=right - left, height=UPPER[1] - top, class_="window"),
        tag("line", x1=left, x2=right, y1=top, y2=top, class_="window-line"),
        states.symbol(tone, middle - 3.9 * len(label) - 12, 6, 12),
        tag("text", label, x=middle + 6, y=16, class_="decision"),
        tag("text", f"round {entry.round}", x=middle, y=HEIGHT - 8, class_="axis-label"),
    ]
    tip = [f"round {entry.round}: {label}", f"window {entry.window:,}", *entry.reasons]
    if entry.facts:
        for value, kind in ((entry.facts.length_p99, "p99"), (entry.facts.length_p50, "p50")):
            at = tokens(value)
            parts.append(tag("line", x1=middle - 14, x2=middle + 14, y1=at, y2=at,
                             class_=f"level {kind}"))  # fmt: skip
            # A label that would sit on the window's line goes below it.
            down = 10.0 if abs(at - top) < 8 else 3.5
            parts.append(tag("text", figures.number(value, 3), x=middle + 18, y=at + down,
                             class_="point-label"))  # fmt: skip
    return tag("g", *parts, class_="round", data_tip="\n".join(tip))


def _perplexity(entry: LadderEntry, index: int, x: Scale, scale: Scale) -> Safe | None:
    if entry.facts is None:
        return None
    left, right = x(index + 0.3), x(index + 0.7)
    first, last = scale(entry.facts.perplexity_first), scale(entry.facts.perplexity_last)
    tip = (f"round {entry.round}: perplexity {figures.number(entry.facts.perplexity_first)} to "
           f"{figures.number(entry.facts.perplexity_last)}")  # fmt: skip
    return tag(
        "g",
        tag("line", x1=left, x2=right, y1=first, y2=last, class_="ppl"),
        tag("circle", cx=left, cy=first, r=2.5, class_="ppl open"),
        tag("circle", cx=right, cy=last, r=3, class_="ppl"),
        tag("text", figures.number(entry.facts.perplexity_last, 3), x=right + 7, y=last + 3.5,
            class_="point-label"),
        data_tip=tip,
    )  # fmt: skip


def _table(history: list[LadderEntry]) -> Safe:
    names = (("Round", "num"), ("Window", "num"), ("Decision", ""), ("p50", "num"), ("p99", "num"),
             ("Perplexity", "num"), ("Head / tail", "num"), ("Truncated", "num"),
             ("Repetition", "num"), ("Reward", "num"), ("Why", ""))  # fmt: skip
    head = tag("tr", *(tag("th", name, class_=kind, scope="col") for name, kind in names))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *map(_table_row, history)),
                          class_="ladder-table"), class_="scroll")  # fmt: skip


def _table_row(entry: LadderEntry) -> Safe:
    facts = entry.facts
    cells: list[Safe | str]
    if facts is None:
        cells = [figures.MISSING] * 7
    else:
        cells = [
            figures.value(facts.length_p50),
            figures.value(facts.length_p99),
            join(figures.value(facts.perplexity_first), " → ",
                 figures.value(facts.perplexity_last)),
            join(figures.value(facts.perplexity_head), " / ",
                 figures.value(facts.perplexity_tail)),
            figures.value(facts.truncated_share, figures.percent(facts.truncated_share)),
            figures.value(facts.repetition_share, figures.percent(facts.repetition_share)),
            figures.value(facts.reward_mean),
        ]  # fmt: skip
    label = entry.decision.replace("_", " ")
    return tag(
        "tr",
        tag("td", str(entry.round), class_="num"),
        tag("td", figures.value(entry.window), class_="num"),
        tag("td", states.pill(_TONES[entry.decision], label)),
        *(tag("td", cell, class_="num") for cell in cells),
        tag("td", *(tag("div", reason) for reason in entry.reasons), class_="why"),
    )
