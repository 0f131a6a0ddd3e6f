"""Parts that the readable reports of all benchmarks share."""

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.schedule.checks import Check


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def checks_section(checks: Sequence[Check], reached: str = "reached") -> str:
    """How many passed, and a row for each; `reached` heads the column of figures."""
    counts = Counter(check.verdict for check in checks)
    said = f"{counts['pass']} pass, {counts['FAIL']} fail, {counts['missing']} not run.\n\n"
    rows = [(one.what, one.wanted, one.reached, one.verdict) for one in checks]
    return said + grid(("check", "wanted", reached, ""), rows)
