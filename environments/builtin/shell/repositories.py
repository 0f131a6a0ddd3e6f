"""The kinds of repositories that `generate_tasks.py` draws from: right sources and ways to break them.

Sources are templates of `str.format`. A bug replaces one piece of text by another; the last bug of
each kind is kept for the test split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

CORE, EXTRA = "app.core", "app.extra"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a test."""

    module: str
    function: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Bug:
    """A piece of a module's source, and what stands there instead."""

    module: str
    right: str
    wrong: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of repository."""

    name: str
    sources: Mapping[str, str]
    bugs: tuple[Bug, ...]
    constants: Callable[[Random], Mapping[str, object]]
    call: Callable[[Random], Call]


SPANS = Kind(
    name="spans",
    sources={
        "core": '''"""Spans of whole numbers, both ends included."""


def merge(spans):
    """Sorted spans in which none touches another; spans at most {gap} apart become one."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + {gap}:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
''',
        "extra": '''"""Sizes of spans."""

from app.core import merge


def covered(spans):
    """How many numbers lie in at least one merged span."""
    return sum(end - start + 1 for start, end in merge(spans))
''',
    },
    bugs=(
        Bug("core", "max(merged[-1][1], end)", "end"),
        Bug("core", "in sorted(spans)", "in spans"),
        Bug("extra", "end - start + 1", "end - start"),
        Bug("core", "<= merged[-1][1] + {gap}", "< merged[-1][1] + {gap}"),
    ),
    constants=lambda random: {"gap": random.randint(1, 4)},
    call=lambda random: Call(
        *_one_of(random, (CORE, "merge"), (EXTRA, "covered")), (_spans(random),)
    ),
)

PRICES = Kind(
    name="prices",
    sources={
        "core": '''"""Totals in cents."""


def total(items):
    """Sum of price times count; from {many} pieces of an item on, {percent} percent off of it."""
    cents = 0
    for price, count in items:
        line = price * count
        if count >= {many}:
            line -= line * {percent} // 100
        cents += line
    return cents
''',
        "extra": '''"""Prices for people."""

from app.core import total


def label(items):
    """The total as text, for instance 12.05."""
    cents = total(items)
    return f"{{cents // 100}}.{{cents % 100:02d}}"
''',
    },
    bugs=(
        Bug("core", "cents += line", "cents += price"),
        Bug("extra", "{{cents % 100:02d}}", "{{cents % 100}}"),
        Bug("core", "line * {percent} // 100", "price * {percent} // 100"),
        Bug("core", "count >= {many}", "count > {many}"),
    ),
    constants=lambda random: {"many": random.randint(3, 5), "percent": random.choice((5, 10, 20))},
    call=lambda random: Call(
        *_one_of(random, (CORE, "total"), (EXTRA, "label")), (_items(random),)
    ),
)

WORDS = Kind(
    name="words",
    sources={
        "core": '''"""Words of a text."""


def words(text):
    """Lower-case words of at least {least} letters, in order; everything else separates."""
    found, word = [], ""
    for letter in text.lower() + " ":
        if letter.isalpha():
            word += letter
            continue
        if len(word) >= {least}:
            found.append(word)
        word = ""
    return found
''',
        "extra": '''"""Counts of words."""

from app.core import words


def top(text, most):
    """The most frequent words, ties in the order of the alphabet."""
    found = words(text)
    return sorted(set(found), key=lambda word: (-found.count(word), word))[:most]
''',
    },
    bugs=(
        Bug("core", 'text.lower() + " "', "text.lower()"),
        Bug("extra", "(-found.count(word), word)", "(found.count(word), word)"),
        Bug("core", "text.lower() + ", "text + "),
        Bug("core", ">= {least}", "> {least}"),
    ),
    constants=lambda random: {"least": random.randint(2, 4)},
    call=lambda random: _words_call(random),
)

WINDOWS = Kind(
    name="windows",
    sources={
        "core": '''"""Windows over a series."""


def sums(values, size):
    """Sum of each whole window of `size` neighbours; none for a size below {least}."""
    if size < {least}:
        return []
    return [sum(values[at : at + size]) for at in range(len(values) - size + 1)]
''',
        "extra": '''"""Peaks of a series."""

from app.core import sums


def peak(values, size):
    """Where the largest window starts, the first of equals; -1 where there is none."""
    found = sums(values, size)
    return found.index(max(found)) if found else -1
''',
    },
    bugs=(
        Bug("core", "len(values) - size + 1", "len(values) - size"),
        Bug("extra", "max(found)", "min(found)"),
        Bug("core", "at : at + size", "at : at + size - 1"),
        Bug("core", "size < {least}", "size <= {least}"),
    ),
    constants=lambda random: {"least": random.randint(1, 2)},
    call=lambda random: Call(
        *_one_of(random, (CORE, "sums"), (EXTRA, "peak")), (_numbers(random), random.randint(1, 4))
    ),
)

KINDS = (SPANS, PRICES, WORDS, WINDOWS)


def _one_of(random: Random, *choices: tuple[str, str]) -> tuple[str, str]:
    return random.choice(choices)


def _numbers(random: Random) -> list[int]:
    return [random.randint(0, 9) for _ in range(random.randint(2, 7))]


def _spans(random: Random) -> list[list[int]]:
    starts = [random.randint(0, 30) for _ in range(random.randint(2, 5))]
    return [[start, start + random.randint(0, 8)] for start in starts]


def _items(random: Random) -> list[list[int]]:
    return [[random.randint(1, 999), random.randint(1, 6)] for _ in range(random.randint(1, 3))]


def _words_call(random: Random) -> Call:
    pool = ("Ab", "bee", "Cat", "dent", "early", "at", "BEE", "cat,", "it", "DENT!", "Early")
    text = " ".join(random.choice(pool) for _ in range(random.randint(3, 8)))
    if random.random() < 0.5:
        return Call(CORE, "words", (text,))
    return Call(EXTRA, "top", (text, random.randint(1, 3)))
