"""A turn that loses its slot for want of pages keeps those that nobody needs."""

from kv.rules import PLAIN
from tests.unit.simulation.modelled import Yard, prefix_of


def test_only_what_the_others_take_is_computed_again() -> None:
    """Two turns of 640 + 320 tokens on 100 pages: at 50 pages each there is none left.

    The loser's last 10 pages go to the other, for its 160 tokens still to come; 640 tokens of it stay.
    (Ranked admission would have kept the second one waiting.)
    """
    yard = Yard()
    engine = yard.engine(PLAIN, pages=100)
    for number in range(2):
        yard.begin(engine, yard.stream(prefix_of(number, 16), (640, 320)))
    yard.run()
    assert engine.device.counts.retractions == 1
    assert engine.counts.sampled_tokens == 2 * 320
    assert engine.counts.recomputed_tokens == 160
    assert engine.counts.wasted_tokens == 0
