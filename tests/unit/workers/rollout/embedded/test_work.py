"""What an engine says of its work: seconds and what was computed in them."""

from tests.support.engines import request
from tests.unit.workers.rollout.embedded.cores import Answers, build, drain, submit
from workers.rollout.embedded.counters import Counters


class Ticks:
    """A clock that goes on by a second with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_prompts_and_contexts_that_were_read_are_counted() -> None:
    """A prompt of 20: 19 tokens are prefilled, and attend to 1 + ... + 19; then 20 + 21 + 22 are read."""
    core = build(slots=1)
    answers: Answers = {}
    submit(core, request("a", tuple(1 + n % 9 for n in range(20)), max_tokens=3), answers)
    drain(core)
    counters = core.counters
    assert (counters.prefilled_tokens, counters.attended_tokens) == (19, 19 * 20 // 2)
    assert counters.kv_read_tokens == 20 + 21 + 22


def spent(pause_s: float) -> Counters:
    """Of one turn, with a rest between two of its steps."""
    clock = Ticks()
    core = build(slots=1, clock=clock)
    answers: Answers = {}
    submit(core, request("a", (1,) * 20, max_tokens=4), answers)
    core.step()
    core.rest()
    clock.now += pause_s
    while core.active:
        core.step()
    clock.now += pause_s
    core.step()
    return core.counters


def test_time_between_steps_counts_and_a_rest_does_not() -> None:
    counters = spent(0.0)
    assert 0.0 < counters.prefill_s < counters.busy_s < counters.engaged_s
    assert spent(1e3).engaged_s == counters.engaged_s
