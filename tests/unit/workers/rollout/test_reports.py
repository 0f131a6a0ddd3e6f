"""Turn events on their way to the leader: at once when quiet, gathered when not, never out of order."""

from collections.abc import AsyncIterator

import pytest

from domain.events import TurnFinished, TurnSampled
from domain.ids import RolloutId
from domain.wire import TurnReports
from infra.clock import ManualClock
from tests.support import eventually
from workers.rollout.reports import REPORT_EVERY_S, REPORT_ROLLOUTS_MAX, TurnReporter

ONE, OTHER = RolloutId("ro_one"), RolloutId("ro_other")


def sampled(turn: int, rollout: RolloutId = ONE) -> TurnSampled:
    return TurnSampled(rollout, 1, 1, turn, 10 * turn, 0.5)


def finished(turn: int, rollout: RolloutId = ONE) -> TurnFinished:
    return TurnFinished(rollout, 1, 1, turn, 10 * turn, 5 * turn, 0, 0.5)


class Desk:
    """A reporter, and what it has sent."""

    def __init__(self, clock: ManualClock) -> None:
        self.sent: list[TurnReports] = []
        self.reporter = TurnReporter(clock, self._send)

    def _send(self, frame: object) -> None:
        assert isinstance(frame, TurnReports)
        self.sent.append(frame)


@pytest.fixture
async def desk(clock: ManualClock) -> AsyncIterator[Desk]:
    one = Desk(clock)
    yield one
    await one.reporter.close()


async def test_an_event_after_a_quiet_time_is_told_at_once(desk: Desk) -> None:
    desk.reporter.add(sampled(1))
    await eventually(lambda: desk.sent)
    assert desk.sent == [TurnReports((), (sampled(1),))]


async def test_events_that_follow_wait_and_go_in_one_frame(desk: Desk, clock: ManualClock) -> None:
    desk.reporter.add(sampled(1))
    await eventually(lambda: desk.sent)
    desk.reporter.add(finished(1))
    desk.reporter.add(sampled(1, OTHER))
    assert len(desk.sent) == 1
    clock.advance(REPORT_EVERY_S)
    await eventually(lambda: len(desk.sent) == 2)
    assert desk.sent[1] == TurnReports((finished(1),), (sampled(1, OTHER),))


async def test_a_gap_that_is_over_is_never_told(desk: Desk) -> None:
    desk.reporter.add(sampled(1))
    desk.reporter.add(finished(1))
    await eventually(lambda: desk.sent)
    assert desk.sent == [TurnReports((finished(1),), ())]
    assert desk.reporter.merged == 1


async def test_a_thousand_short_turns_cost_two_events_a_frame(
    desk: Desk, clock: ManualClock
) -> None:
    desk.reporter.add(finished(1))
    await eventually(lambda: desk.sent)
    for turn in range(2, 1000):
        desk.reporter.add(sampled(turn))
        desk.reporter.add(finished(turn))
    desk.reporter.add(sampled(1000))
    clock.advance(REPORT_EVERY_S)
    await eventually(lambda: len(desk.sent) == 2)
    assert desk.sent[1] == TurnReports((finished(999),), (sampled(1000),))


async def test_a_frame_has_a_bound_and_the_rest_follows(desk: Desk, clock: ManualClock) -> None:
    names = [RolloutId(f"ro_{n}") for n in range(REPORT_ROLLOUTS_MAX + 3)]
    for name in names:
        desk.reporter.add(sampled(1, name))
    await eventually(lambda: desk.sent)
    clock.advance(REPORT_EVERY_S)
    await eventually(lambda: len(desk.sent) == 2)
    told = [[event.rollout_id for event in frame.sampled] for frame in desk.sent]
    assert told == [names[:REPORT_ROLLOUTS_MAX], names[REPORT_ROLLOUTS_MAX:]]


async def test_what_is_kept_back_is_told_before_the_rollouts_end(desk: Desk) -> None:
    desk.reporter.add(finished(1))
    desk.reporter.add(finished(1, OTHER))
    desk.reporter.settle(OTHER)
    assert desk.sent == [TurnReports((finished(1, OTHER),), ())]


async def test_what_a_rollout_that_is_gone_did_is_not_told(desk: Desk) -> None:
    desk.reporter.add(finished(1))
    desk.reporter.add(finished(1, OTHER))
    desk.reporter.drop(ONE)
    await eventually(lambda: desk.sent)
    assert desk.sent == [TurnReports((finished(1, OTHER),), ())]
