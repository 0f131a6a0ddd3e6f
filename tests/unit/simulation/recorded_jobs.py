"""Recorded jobs made up from known costs, so that a fit has something to find again."""

from random import Random

from simulation.recorded import (
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    RecordedStep,
    RecordedTurn,
)

STEP_S, KV_TOKEN_S, PREFILL_TOKEN_S = 0.010, 2e-5, 1e-4
"""Costs of the made-up engine."""

PROMPT = 100


def alone(seed: int, start_s: float, ordinal: int = 0, reward: float = 0.0) -> RecordedGroup:
    """A group of one rollout with three turns that nobody generates beside: its seconds are exact."""
    chance = Random(seed)
    turns: list[RecordedTurn] = []
    now, context = start_s, 0
    for index in range(3):
        new = PROMPT if index == 0 else chance.randrange(5, 400)
        prompt, output = context + new, chance.randrange(20, 300)
        seconds = output * (STEP_S + KV_TOKEN_S * (prompt + output / 2)) + PREFILL_TOKEN_S * new
        turns.append(RecordedTurn(prompt, new, output, seconds, 0.5))
        now += seconds + 0.5
        context = prompt + output
    one = RecordedRollout("engine0", start_s, now, tuple(turns), reward)
    return RecordedGroup(ordinal, start_s - 0.2, now, now + 0.3, (one,))


def job(groups: int = 12) -> RecordedJob:
    """Groups one after the other, and steps whose trainer does 1,000 tokens a second."""
    made: list[RecordedGroup] = []
    now = 10.0
    for ordinal in range(groups):
        made.append(alone(ordinal, now, ordinal, float(ordinal % 2)))
        now = made[-1].graded_s
    steps = tuple(
        RecordedStep(number, 20.0 * number, 0.001 * tokens + 2.0, 2.0, tokens, (number % 3,))
        for number, tokens in ((1, 3_000), (2, 5_000), (3, 4_000))
    )
    return RecordedJob(tuple(made), steps, (0.4, 0.6, 0.5), 1, 8, 50_000)
