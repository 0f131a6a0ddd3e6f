"""Costs of an engine, from points that were measured and from what it counted in a job."""

import pytest

from benchmarks.e2e.costs import Costs, Work, fitted, scale_of
from simulation.fitting import Row
from simulation.plan import CannotModel


def test_costs_come_from_prefills_and_decode_steps() -> None:
    prefills = [
        Row((tokens, tokens**2 / 2), tokens * (1e-4 + 1e-8 * tokens / 2), 1.0)
        for tokens in (512.0, 2048.0, 4096.0)
    ]
    decodes = [Row((1.0, read), 3e-3 + read * 1e-7, 1.0) for read in (512.0, 8192.0, 65536.0)]
    found = fitted(prefills, decodes)
    assert found.columns == pytest.approx((3e-3, 1e-7, 1e-4, 1e-8))


def test_steps_and_prompts_are_dearer_by_factors_of_their_own() -> None:
    """500 steps and 1e6 tokens read take 5 + 1 s beside nothing, 2,000 tokens 2 + 1 s; 18 and 6 s here."""
    costs = Costs(1e-2, 1e-6, 1e-3, 1e-6)
    work = Work(24.0, 6.0, 500.0, 1e6, 2000.0, 1e6)
    found = scale_of(costs, work)
    assert [found.decode, found.prefill] == pytest.approx([3.0, 2.0])
    assert found.of(costs).columns == pytest.approx((3e-2, 3e-6, 2e-3, 2e-6))


@pytest.mark.parametrize(
    "work",
    [
        Work(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        Work(24.0, 0.0, 500.0, 1e6, 2000.0, 1e6),
        Work(6.0, 6.0, 500.0, 1e6, 2000.0, 1e6),
    ],
    ids=["nothing", "no prefill", "no decode"],
)
def test_engines_that_counted_nothing_are_not_taken_for_undisturbed_ones(work: Work) -> None:
    with pytest.raises(CannotModel):
        scale_of(Costs(1e-2, 1e-6, 1e-3, 1e-6), work)
