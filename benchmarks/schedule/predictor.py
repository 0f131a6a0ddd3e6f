"""A learned predictor of any quality: the true remaining work under lognormal noise.

The noise of a rollout is one draw that stays with it, as a learned model errs about a task and not about
a turn. Its scale is the one at which the rank correlation (Spearman) of estimates and truth, over all
turns of a sample of rollouts, is the wanted one. At 0 the estimate is noise alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation
from typing import Final

from domain.events import Remaining
from domain.ids import RolloutId, group_of, index_of, ordinal_of, task_ordinal
from simulation.workload.trajectory import Trajectory
from simulation.workload.workload import Workload, chance_of

SAMPLE_GROUPS: Final = 40
"""Groups that calibrate the noise: with 8 members and tens of turns each some ten thousand pairs."""

PAIRS_STRIDE: Final = 7
"""Every so many turns of a rollout enter the sample; neighbouring turns say nearly the same."""

SIGMA_MAX: Final = 64.0
"""Upper end of the search; at it nothing of the truth is left in the order."""

SEARCHES: Final = 40
"""Halvings of the search interval, to far below what the sample resolves."""

Q90_SCORE: Final = 1.2815515655446004
"""The normal score of the 90 % quantile."""

Q90_SPREAD_MAX: Final = 2.0
"""A predictor without information still names a finite quantile."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Logarithms of true remaining tokens, and the normal score of each one's rollout."""

    truths: tuple[float, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NoisyPredictor:
    """An estimator for `simulation.runs.Setup`."""

    seed: int
    sigma: float
    """Scale of the logarithm's noise; infinite: no information."""

    def __call__(self, rollout: RolloutId, trajectory: Trajectory, turns: int) -> Remaining:
        """What is left behind the finished turns, as this predictor sees it."""
        left = trajectory.turns[turns:]
        tokens = max(1, sum(turn.output_tokens for turn in left))
        score = score_of(self.seed, task_ordinal(ordinal_of(group_of(rollout))), index_of(rollout))
        if math.isinf(self.sigma):
            factor = math.exp(score) * UNINFORMED_TOKENS / tokens
        else:
            factor = math.exp(self.sigma * score)
        spread = math.exp(Q90_SCORE * min(self.sigma, Q90_SPREAD_MAX))
        return Remaining(
            tokens=tokens * factor,
            tokens_q90=tokens * factor * spread,
            tool_s=sum(turn.tool_s for turn in left) * factor,
            turns=len(left) * factor,
        )


UNINFORMED_TOKENS: Final = 5_000.0
"""Median of estimates without information; any constant gives the same order."""


def score_of(seed: int, ordinal: int, member: int) -> float:
    """The standard normal error of a rollout."""
    return chance_of(seed, ordinal, f"predict {member}").gauss(0.0, 1.0)


def predictor_of(workload: Workload, quality: float) -> NoisyPredictor:
    """The predictor of a rank correlation on a workload."""
    if quality >= 1.0:
        return NoisyPredictor(workload.seed, 0.0)
    if quality <= 0.0:
        return NoisyPredictor(workload.seed, math.inf)
    sample = sample_of(workload)
    low, high = 0.0, SIGMA_MAX
    for _ in range(SEARCHES):
        middle = (low + high) / 2
        if reached(sample, middle) > quality:
            low = middle
        else:
            high = middle
    return NoisyPredictor(workload.seed, (low + high) / 2)


def sample_of(workload: Workload) -> Sample:
    """Remaining work along the rollouts of the first groups."""
    truths: list[float] = []
    scores: list[float] = []
    for ordinal in range(SAMPLE_GROUPS):
        for member, one in enumerate(workload.group(ordinal)):
            outputs = [turn.output_tokens for turn in one.turns]
            points = range(1, len(outputs), PAIRS_STRIDE)
            truths += [math.log(sum(outputs[done:])) for done in points]
            scores += [score_of(workload.seed, ordinal, member)] * len(points)
    return Sample(tuple(truths), tuple(scores))


def reached(sample: Sample, sigma: float) -> float:
    """The rank correlation that noise of this scale leaves."""
    if math.isinf(sigma):
        return spearman(sample.truths, sample.scores)
    noisy = [
        truth + sigma * score for truth, score in zip(sample.truths, sample.scores, strict=True)
    ]
    return spearman(sample.truths, noisy)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Correlation of ranks, ties at their mean rank."""
    return correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and values[order[end + 1]] == values[order[begin]]:
            end += 1
        for place in range(begin, end + 1):
            ranks[order[place]] = (begin + end) / 2
        begin = end + 1
    return ranks
