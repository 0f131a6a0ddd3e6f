"""The sweep: what is tried, what is joined, who wins."""

from benchmarks.schedule.cases import COMPARED, tuned_knobs
from benchmarks.schedule.sweep import Tried, singles, together, winner
from domain import knobs

DEFAULTS = Tried((), (100.0, 102.0))
FASTER = Tried((("poll_s", 0.0),), (90.0, 92.0))
FASTEST = Tried((("poll_s", 2.0),), (80.0, 82.0))
OTHER = Tried((("lag_max", 1.0),), (95.0, 96.0))
CHANCE = Tried((("lag_max", 3.0),), (100.0, 101.0))


def test_every_compared_baseline_is_swept_from_its_defaults_on() -> None:
    for strategy in COMPARED:
        settings = singles(strategy)
        assert settings[0] == ()
        assert len(settings) == len(set(settings)) > 1


def test_of_each_knob_the_value_that_helped_most_is_joined() -> None:
    tried = [DEFAULTS, FASTER, FASTEST, OTHER, CHANCE]
    assert together(tried) == (("lag_max", 1.0), ("poll_s", 2.0))


def test_a_gain_that_is_chance_leaves_the_defaults() -> None:
    assert winner([DEFAULTS, CHANCE]) == ()
    assert winner([DEFAULTS, CHANCE, FASTER]) == FASTER.knobs


def test_the_committed_winners_are_knobs_that_a_job_may_set() -> None:
    for strategy, chosen in tuned_knobs().items():
        for name, value in chosen:
            knob = knobs.find(strategy, name)
            assert knob is not None
            assert knob.accepts(value)
