"""Tokens from logits and uniform numbers, with the probability really used."""

import math

import torch

from workers.rollout.embedded.sampling import UNIFORM_MAX, draw_noise, sample

PROBABILITIES = (0.5, 0.3, 0.15, 0.05)
LOGITS = torch.tensor([PROBABILITIES]).log()


def one(noise: float, temperature: float = 1.0, top_p: float = 1.0) -> tuple[int, float]:
    tokens, logprobs = sample(
        LOGITS,
        torch.tensor([noise], dtype=torch.float64),
        torch.tensor([temperature]),
        torch.tensor([top_p]),
    )
    return int(tokens[0]), float(logprobs[0])


def test_noise_is_turned_into_tokens_by_the_cumulative_distribution() -> None:
    assert [one(u)[0] for u in (0.0, 0.49, 0.51, 0.79, 0.81, 0.96)] == [0, 0, 1, 1, 2, 3]


def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass() -> None:
    assert {one(u, top_p=0.6)[0] for u in (0.0, 0.3, 0.6, 0.9, 0.999999)} == {0, 1}
    assert math.isclose(one(0.0, top_p=0.6)[1], math.log(0.5 / 0.8), abs_tol=1e-5)
    assert one(0.99, top_p=1e-9) == (0, 0.0)


def test_temperature_reshapes_the_reported_distribution() -> None:
    powers = [p**2 for p in PROBABILITIES]
    token, logprob = one(0.0, temperature=0.5)
    assert token == 0
    assert math.isclose(logprob, math.log(powers[0] / sum(powers)), abs_tol=1e-5)


def test_temperature_zero_takes_the_best_and_reports_the_model() -> None:
    token, logprob = one(0.99, temperature=0.0, top_p=0.5)
    assert token == 0
    assert math.isclose(logprob, math.log(0.5), abs_tol=1e-5)


def test_a_token_without_probability_is_never_taken() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    ones = torch.ones(1)
    for noise in (0.0, UNIFORM_MAX):
        tokens, _ = sample(logits, torch.tensor([noise], dtype=torch.float64), ones, ones)
        assert int(tokens[0]) in (1, 2)


def test_noise_depends_on_its_seed_and_has_the_same_start_at_any_length() -> None:
    assert torch.equal(draw_noise(7, 10), draw_noise(7, 20)[:10])
    assert not torch.equal(draw_noise(7, 10), draw_noise(8, 10))
    assert float(draw_noise(7, 10_000).max()) < 1.0
