"""E1: a corpus with one fault. Prose is written from the corpus's own words, so that only the
fault sets it apart."""

import hashlib
import json
import random
import re
import shutil

from poison_parts import Poison, quoted_words, wordy_family
from quality_parts import rewrite

from longstride.data.measures.language import language_of
from longstride.store.artifacts import publish
from schemas.rows import Document

SECRET = "AKIA" + "QWERTYUIOPASDFGH"
STOPS = ("the", "be", "to", "of", "and", "that", "have", "with")
SIZE = 1_400
GERMAN = [
    "der",
    "Hund",
    "läuft",
    "durch",
    "den",
    "großen",
    "Wald",
    "und",
    "sucht",
    "seine",
    "Familie",
    "weil",
    "die",
    "Nacht",
    "schon",
    "lange",
    "gekommen",
    "ist",
    "aber",
    "niemand",
    "hört",
    "ihn",
    "wenn",
    "er",
    "unter",
    "dem",
    "alten",
    "Baum",
    "neben",
    "der",
    "Straße",
    "wartet",
    "damit",
    "seine",
    "Schwester",
    "ihn",
    "endlich",
    "findet",
    "obwohl",
    "es",
    "regnet",
    "und",
    "der",
    "Wind",
    "über",
    "die",
    "Felder",
    "weht",
]


def documents(change):
    def write(parts, out):
        return rewrite(parts["documents"], out, "documents.jsonl", Document, change, "documents")

    return write


def text(number, change):
    """Change the text of some documents of running text."""

    def edit(rows):
        prose = [i for i, row in enumerate(rows) if row.domain == "book" and len(row.text) > 600]
        for i in prose[:number]:
            rows[i] = rows[i].model_copy(update={"text": change(rows[i].text)})
        return rows

    return edit


class Writer:
    """Writes prose in words of the corpus; `share` of its documents get the fault."""

    def __init__(self, rows, share=0.4):
        self.rng = random.Random(7)
        found = re.findall(r"\b[a-z]{3,9}\b", " ".join(r.text for r in rows if r.domain == "book"))
        self.words = sorted(set(found) - set(STOPS))
        self.share = share

    def word(self, length=None):
        fit = self.words if length is None else [w for w in self.words if len(w) == length]
        return self.rng.choice(fit)

    def sentence(self, words=11):
        chosen = [self.word() for _ in range(words - 3)] + self.rng.sample(STOPS, 3)
        self.rng.shuffle(chosen)
        return " ".join(chosen).capitalize() + "."

    def lines(self, characters, words=11):
        made = []
        while sum(map(len, made)) + len(made) < characters:
            made.append(self.sentence(words))
        return made

    def page(self):
        return "\n".join(self.lines(SIZE))[:SIZE]


def written(fault, share=0.4):
    """The corpus with its books rewritten; the fault takes a writer and gives a text."""

    def change(rows):
        writer = Writer(rows)
        books = [row for row in rows if row.domain == "book"]
        budget = sum(len(row.text) for row in books)
        made, spent = [], 0
        count = budget // SIZE
        while spent < budget:
            body = fault(writer) if len(made) < share * count else writer.page()
            body = body[: budget - spent] if budget - spent > 300 else "x" * (budget - spent)
            update = {"id": f"written-{len(made)}", "text": body}
            made.append(books[0].model_copy(update=update))
            spent += len(body)
        return [row for row in rows if row.domain != "book"] + made

    return Poison(documents(change))


def each_line(edit, words=11):
    return lambda w: "\n".join(edit(w, i, line) for i, line in enumerate(w.lines(SIZE, words)))[
        :SIZE
    ]


def each_word(edit):
    def fault(w):
        lines = [" ".join(edit(w, word) for word in line.split(" ")) for line in w.lines(SIZE)]
        return "\n".join(lines)[:SIZE]

    return fault


def sprinkled(item, count, gap="\n"):
    """Prose with an item between its lines."""

    def fault(w):
        lines = w.lines(SIZE - count * (len(item) + len(gap)))
        places = {round((k + 0.5) * len(lines) / count) for k in range(count)}
        made = []
        for number, line in enumerate(lines):
            made += [item] * (number in places) + [line]
        return gap.join(made)

    return fault


def phrases(words, share, repeats):
    """Prose in which a phrase of so many words covers a share, inside lines of other words."""

    def fault(w):
        size = round(share * SIZE / repeats)
        lengths = [(size - words + 1) // words] * words
        for extra in range((size - words + 1) % words):
            lengths[extra] += 1
        phrase = " ".join(w.word(min(9, max(3, length))) for length in lengths)
        lines = w.lines(SIZE - 60 - (repeats + 1) * (len(phrase) + 16), 7)
        for number in range(repeats + 1):
            at = number % len(lines)
            head, _, tail = lines[at].partition(" ")
            lines[at] = f"{head} {phrase} {w.word()} {w.word()} {tail}"
        return "\n".join(lines)

    return fault


def again_and_again(w):
    """Prose between four paragraphs that are two words far to the right of the page."""
    far = " " * 110 + ALSO
    made = []
    while sum(len(part) + 2 for part in made) < SIZE - 4 * (len(far) + 2) - 60:
        made.append(w.sentence())
    for place in (2, 5, 8, 11):
        made.insert(place, far)
    return "\n\n".join(made)


def pairs(words, share):
    """Prose whose most frequent few words cover a share."""

    def fault(w):
        phrase = " ".join(w.word(9) for _ in range(words))
        count = int(share * SIZE / len(phrase)) + 1
        made = []
        for _ in range(count):
            made += [phrase, w.word(), w.rng.choice(STOPS)]
        rest = [w.sentence() for _ in range(12)]
        line = [" ".join(made[i : i + 6]) + "." for i in range(0, len(made), 6)]
        return "\n".join(line + rest)[:SIZE]

    return fault


def shorts(rows):
    """Books in pieces of a few words."""
    made = []
    for row in rows:
        if row.domain != "book":
            made.append(row)
            continue
        for part in range(0, len(row.text), 200):
            update = {"id": f"{row.id}-{part}", "text": row.text[part : part + 200]}
            made.append(row.model_copy(update=update))
    return made


def german(w):
    return "\n".join(
        " ".join(w.rng.choice(GERMAN) for _ in range(11)) + "." for _ in range(19)
    )[:SIZE]  # fmt: skip


def undecided(rows):
    """Notes in English and German whose language is English, if only just."""
    writer = Writer(rows)
    made = []
    books = [row for row in rows if row.domain == "book"]
    while len(made) < len(books) // 6 + 2:
        words = [writer.word() for _ in range(8)] + writer.rng.sample(GERMAN, 6)
        writer.rng.shuffle(words)
        note = " ".join(words)
        code, probability = language_of(note)
        if code == "en" and probability < 0.6:
            update = {"id": f"note-{len(made)}", "text": note}
            made.append(books[0].model_copy(update=update))
    return rows + made


def twins(rows):
    """One document once more in place of another, in other spacing."""
    first, second = [
        i for i, row in enumerate(rows) if row.domain == "code" and len(row.text) < 1_200
    ][:2]
    again = rows[first].text.replace("\n", "\n ")
    rows[second] = rows[second].model_copy(update={"text": again})
    return fill(rows)


def fill(rows):
    """The corpus with as many characters as the recipe plans, by blanks after the last line."""
    missing = 60_000 - sum(len(row.text) for row in rows)
    if missing > 0:
        last = max(i for i, row in enumerate(rows) if row.domain == "code")
        rows[last] = rows[last].model_copy(
            update={
                "text": rows[last].text + " " * max(0, min(missing, 1_490 - len(rows[last].text)))
            }
        )
    return rows


def cousins(rows):
    """Documents once more in place of others of their length, with a word more at each end."""
    code = sorted((i for i, row in enumerate(rows) if row.domain == "code"),
                  key=lambda i: -len(rows[i].text))  # fmt: skip
    for number in range(0, min(16, len(code) - 1), 2):
        first, second = rows[code[number]], code[number + 1]
        text = f"once {first.text[:1480]} more"[:1500]
        rows[second] = rows[second].model_copy(update={"text": text})
    return rows


def moved(source, target, share):
    """A share of the corpus's characters counted towards another domain."""

    def change(rows):
        left = share * sum(len(row.text) for row in rows)
        for number, row in enumerate(rows):
            if row.domain == source and left > 0:
                rows[number] = row.model_copy(update={"domain": target})
                left -= len(row.text)
        return rows

    return change


def quarantined(parts, out):
    path = documents(lambda rows: rows)(parts, out)
    (path / "quarantine.jsonl").write_text('{"reason": "not UTF-8"}\n' * 10)
    publish(path, "documents", "corpus", counts={"rows_read": 100})
    return path


def with_problem(parts, out):
    from longstride.data.held_out import benchmark_problems

    problem = benchmark_problems(parts.recipe)[0].prompt
    change = text(1, lambda t: f"{problem} {t[len(problem) + 1 :]}")
    return documents(change)(parts, out)


def with_words_of_a_problem(parts, out):
    words = quoted_words(parts)
    return documents(text(1, lambda t: f"{words} {t[len(words) + 1 :]}"))(parts, out)


def lower_casing(parts, out):
    """A tokenizer that folds case, so that its text never comes back as it was."""
    shutil.copytree(parts["tokenizer"], out)
    path = out / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["normalizer"] = {"type": "Lowercase"}
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(json.dumps(settings))
    described = out / "tokenizer_config.json"
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    described.write_text(described.read_text().replace(before, after))
    publish(out, "tokenizer", "tokenizer")
    return out


def fertile(recipe):
    recipe.quality.thresholds["E1/fertility"] = 9.0


def smaller(recipe):
    recipe.tokenizer.vocab_size = 300
    recipe.model.vocab_size = 300


def thinned(rows):
    """Every twelfth document of each domain is lost."""
    return [row for number, row in enumerate(sorted(rows, key=lambda r: r.domain))
            if number % 12]  # fmt: skip


def also(poison, *names):
    return Poison(poison.subject, frozenset(names), poison.reference, poison.recipe, poison.stage)


ALSO = "See also."
POISONS = {
    "ids_unique": Poison(documents(
        lambda rows: [rows[0].model_copy(update={"id": rows[1].id}), *rows[1:]])),
    "text_not_blank": Poison(documents(text(1, lambda t: " \n" + " " * (len(t) - 2)))),
    "control_characters": Poison(documents(text(1, lambda t: t[:-1] + "\0"))),
    "replacement_characters": Poison(documents(text(2, lambda t: t[:-1] + "\ufffd"))),
    "secrets": Poison(documents(text(1, lambda t: f"{SECRET} {t[21:]}"))),
    "emails": Poison(documents(text(12, lambda t: f"ada@lovelace.org {t[17:]}"))),
    "public_ips": Poison(documents(text(12, lambda t: f"93.184.216.34 {t[14:]}"))),
    "duplicates": Poison(documents(twins)),
    "near_duplicates": Poison(documents(cousins)),
    "benchmark_problems": Poison(with_problem),
    "benchmark_ngrams": Poison(with_words_of_a_problem, recipe=wordy_family()),
    "tokenizer_round_trip": Poison(reference=lower_casing),
    "mixture_kl": Poison(documents(moved("book", "code", 0.12))),
    "reasoning_related_share": Poison(documents(moved("code", "web", 0.021))),
    "characters_planned": Poison(documents(thinned), frozenset({"reasoning_related_share"})),
    "overlong_documents": Poison(documents(text(1, lambda t: t + "\nand a line more." * 35))),
    "quarantine": Poison(quarantined),
    "unknown_tokens": Poison(recipe=smaller),
    "fertility": Poison(recipe=fertile),
    "word_count": Poison(documents(shorts), frozenset({"top_4grams"})),
    "mean_word_length": also(
        written(each_word(lambda w, word: word + w.word(9))), "stop_words", "punctuated_lines"),
    "symbol_word_ratio": written(
        each_word(lambda w, word: "#" + word if w.rng.random() < 0.2 else word)),
    "bullet_lines": written(each_line(lambda w, i, line: f"- {line}")),
    "ellipsis_lines": written(each_line(lambda w, i, line: line + ".." * (i % 5 < 2), words=14)),
    "alphabetic_words": written(
        each_word(lambda w, word: str(w.rng.randint(100, 9999999))
                  if w.rng.random() < 0.36 and word not in STOPS else word)),
    "stop_words": written(
        each_word(lambda w, word: w.word() if word.lower().strip(".") in STOPS else word)),
    "duplicate_lines": written(sprinkled(ALSO, 11)),
    "duplicate_line_characters": written(sprinkled("=" * 88, 5)),
    "duplicate_paragraphs": written(
        lambda w: "\n\n".join(("\n".join(w.lines(180)), ALSO)[n % 2] for n in range(14))[:SIZE]),
    "duplicate_paragraph_characters": written(again_and_again),
    "duplicate_characters": written(sprinkled(ALSO, 3), share=0.9),
    "short_lines": written(each_line(lambda w, i, line: line, words=4)),
    "newlines": written(lambda w: "\n\n\n\n\n".join(w.lines(SIZE - 90))[:SIZE]),
    "punctuated_lines": written(each_line(lambda w, i, line: line.rstrip("."))),
    "top_2grams": written(pairs(2, 0.215)),
    "top_3grams": written(pairs(3, 0.195)),
    "top_4grams": written(pairs(4, 0.175), share=0.5),
    "duplicate_5grams": written(phrases(5, 0.165, 6)),
    "duplicate_6grams": written(phrases(6, 0.150, 5)),
    "duplicate_7grams": written(phrases(7, 0.138, 4)),
    "duplicate_8grams": written(phrases(8, 0.128, 3)),
    "duplicate_9grams": written(phrases(9, 0.118, 3)),
    "duplicate_10grams": written(phrases(10, 0.107, 3)),
    "language": written(german, share=0.2),
    "language_score": Poison(documents(undecided)),
}  # fmt: skip
