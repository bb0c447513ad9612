"""What the corpus step does to text between reading and mixing, and why a document is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from longstride.data.files.reading import read_files
from longstride.data.held_out import benchmark_problems
from longstride.data.measures.language import language_of
from longstride.data.measures.minhash import shingle_set
from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.prose import prose_facts
from longstride.data.measures.secrets import secret_count, without_emails, without_public_ips
from longstride.data.measures.words import Hashes, WordHasher, split_words
from longstride.errors import DataError
from schemas.cleaning import CleaningConfig, HeldOutText, Limit, RuleSet, nothing
from schemas.data import FileSource
from schemas.recipe import Recipe
from schemas.rows import Document


@dataclass(frozen=True)
class Drop:
    """Why a document is not used."""

    reason: str
    """Name of the rule: of the measure, or `language`, `holds_problem`, `problem_ngram`."""
    value: str
    """What was measured."""
    limit: str
    """What would have been allowed."""


class Cleaner:
    """Applies the rules of a recipe; remembers only counts and frequent words."""

    def __init__(self, config: CleaningConfig | None, problems: Iterable[Problem]) -> None:
        """Index the held-out problems."""
        config = nothing() if config is None else config
        self.config = config
        self.replaced: Counter[str] = Counter()
        """Addresses replaced, by kind."""
        self._hasher = WordHasher()
        self._rules: list[RuleSet] = [
            config.gopher_quality, config.gopher_repetition, config.fineweb,
        ]  # fmt: skip
        self._problems = (
            ProblemIndex(problems, config.contamination.ngram, self._hasher)
            if config.contamination.domains
            else None
        )

    def refusal(self, row: Document) -> str | None:
        """Why a row as a whole must not be used, without quoting it."""
        if self.config.secrets == "keep":
            return None
        count = secret_count(row.text)
        if not count:
            return None
        return f"it holds {count} private keys or access tokens; take them out, and revoke them"

    def mend(self, text: str, row: Document, generated: bool) -> str:
        """The text with addresses replaced."""
        rule = self.config.personal_data
        if generated or row.domain not in rule.domains:
            return text
        if rule.emails:
            text, count = without_emails(text)
            self.replaced["emails"] += count
        if rule.ip_addresses:
            text, count = without_public_ips(text)
            self.replaced["ip_addresses"] += count
        return text

    def judge(self, document: Document, generated: bool) -> tuple[Drop | None, Hashes | None]:
        """Why a document is dropped, or None; and its shingles where duplicates are looked for."""
        domain = document.domain
        compared = not generated and domain in self.config.near_duplicates.domains
        searched = self._problems is not None and domain in self.config.contamination.domains
        rules = [] if generated else [rules for rules in self._rules if domain in rules.domains]
        drop = None if generated else self._language_drop(document)
        if drop or not (compared or searched or rules):
            return drop, None
        words = split_words(document.text)
        words_W = self._hasher.hash_words(words)
        if rules:
            drop = _prose_drop(rules, prose_facts(document.text, words, words_W))
        if drop is None and searched:
            drop = self._contamination_drop(words_W, generated)
        return drop, shingle_set(words_W) if compared and drop is None else None

    def shingles(self, text: str) -> Hashes:
        """The shingles of a text, for a second look."""
        return shingle_set(self._hasher.hashes(text))

    def _language_drop(self, document: Document) -> Drop | None:
        rule = self.config.language
        if document.domain not in rule.domains:
            return None
        code, probability = language_of(document.text)
        if code in rule.languages and probability >= rule.minimum_probability:
            return None
        wanted = f"{' or '.join(rule.languages)} with at least {rule.minimum_probability:g}"
        return Drop("language", f"{code} with {probability:.2f}", wanted)

    def _contamination_drop(self, words_W: Hashes, generated: bool) -> Drop | None:
        problems = self._problems
        if problems is None:
            return None
        if problems.holds(words_W):
            return Drop("holds_problem", "a held-out problem, whole", "none")
        if not generated and problems.overlaps(words_W):
            ngram = self.config.contamination.ngram
            return Drop("problem_ngram", f"{ngram} words of a held-out problem", "none")
        return None


def _prose_drop(rules: Iterable[RuleSet], facts: dict[str, float]) -> Drop | None:
    for chosen in rules:
        for measure, limit in chosen.limits.items():
            value = facts[measure]
            if limit.minimum is not None and value < limit.minimum:
                return Drop(measure, f"{value:.4g}", _range(limit))
            if limit.maximum is not None and value > limit.maximum:
                return Drop(measure, f"{value:.4g}", _range(limit))
    return None


def _range(limit: Limit) -> str:
    ends = ((limit.minimum, ">="), (limit.maximum, "<="))
    return " and ".join(f"{sign} {end:g}" for end, sign in ends if end is not None)


def held_out_problems(recipe: Recipe) -> list[Problem]:
    """Problems of the recipe's benchmark and of the evaluations that its cleaning names.

    Raises:
        DataError: A set cannot be read, has a broken row, or is empty: searching for a part of the
            problems would look like searching for all.
    """
    if recipe.data.cleaning is None or not recipe.data.cleaning.contamination.domains:
        return []
    rule = recipe.data.cleaning.contamination
    problems = [Problem(p.id, p.family, p.prompt) for p in benchmark_problems(recipe)]
    for held_out in rule.held_out:
        problems += _problems_of(held_out)
    return problems


def _problems_of(held_out: HeldOutText) -> list[Problem]:
    source = FileSource(
        kind="files", name=held_out.name, domain="reasoning", uri=held_out.uri,
        text_field=held_out.text_field, split="test",
    )  # fmt: skip
    broken: list[str] = []
    problems = [
        Problem(row.id, held_out.name, row.text)
        for row in read_files(source, lambda where, reason: broken.append(f"{where}: {reason}"))
    ]
    if broken:
        raise DataError(
            f"held-out set {held_out.name!r} has {len(broken)} unusable rows, first {broken[0]}; "
            "mend them, so that every problem can be looked for"
        )
    if not problems:
        raise DataError(
            f"held-out set {held_out.name!r} at {held_out.uri} holds no problem; correct the uri"
        )
    return problems
