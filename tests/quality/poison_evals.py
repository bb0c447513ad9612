"""E8: evaluations with one fault."""

from poison_parts import Poison
from quality_parts import make_result, make_samples, write_eval

from longstride.store.artifacts import publish


def evaluation(samples=None, edit=None, also=(), counts=None, **result):
    def write(parts, out):
        rows = samples() if samples else make_samples(0.6)
        stated = make_result(make_samples(0.6) if edit else rows, "after", **result)
        if edit:
            edit(rows)
        write_eval(out, rows, stated)
        if counts:
            publish(out, "eval", "benchmark-after", counts=counts)
        return out

    return Poison(write, frozenset(also))


def without(name):
    return lambda: [row for row in make_samples(0.6) if row.prompt_id != name]


def unscored(rows):
    """One of two equal samples of a problem was not judged, which leaves its mean as it is."""
    same = next(i for i in range(0, len(rows), 2) if rows[i].correct == rows[i + 1].correct)
    rows[same] = rows[same].model_copy(update={"correct": None})


def twice(rows):
    same = next(i for i in range(0, len(rows), 2) if rows[i].correct == rows[i + 1].correct)
    rows[same + 1] = rows[same]


def stranger(rows):
    """A sample of a problem that the result does not know, in place of one of two equal ones."""
    same = next(i for i in range(0, len(rows), 2) if rows[i].correct == rows[i + 1].correct)
    rows[same] = rows[same].model_copy(update={"prompt_id": "stranger"})


def one_more(rows):
    rows.append(rows[0].model_copy(update={"sample": 2, "correct": rows[1].correct}))
    if rows[0].correct != rows[1].correct:
        raise ValueError("the first problem's samples must agree")


def flipped(rows):
    wrong = next(row for row in rows if not row.correct)
    wrong.correct = True


def cut_off(rows):
    for row in rows:
        if not row.correct:
            row.finish_reason = "length"


def a_little_better():
    rows = make_samples(0.4)
    rows[0] = rows[0].model_copy(update={"correct": not rows[0].correct})
    return rows


INTERVAL = {"problems": 20, "samples": 40}
POISONS = {
    "ids_unique": evaluation(edit=twice),
    "samples_complete": evaluation(edit=one_more),
    "samples_scored": evaluation(edit=unscored),
    "problems_known": evaluation(edit=stranger),
    "within_window": evaluation(edit=lambda rows: setattr(rows[0], "length", 99)),
    "finished_when_correct": evaluation(
        edit=lambda rows: setattr(rows[0], "finish_reason", "length")),
    "average_recomputed": evaluation(average={"mean": 0.9, "low": 0.8, "high": 1.0, **INTERVAL}),
    "problems_recomputed": evaluation(edit=flipped),
    "interval_present": evaluation(average={"mean": 0.6, "low": 0.7, "high": 0.8, **INTERVAL}),
    "comparable": evaluation(temperature=0.5),
    "problems_paired": evaluation(without("chain_sum-3")),
    "checkpoints_differ": evaluation(checkpoint_digest="sha256:before"),
    "no_regression": evaluation(lambda: make_samples(0.1), also={"no_worse_for_certain"}),
    "no_worse_for_certain": evaluation(a_little_better),
    "truncation": evaluation(edit=cut_off),
    "contamination": evaluation(counts={"contaminated_problems": 2}),
}  # fmt: skip
