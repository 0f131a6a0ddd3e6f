"""Where the seconds of a host go."""

from domain.billing import Bucket, HostSpan, HostUse, Opened, Resource, Share, host_lines

FIRST = HostSpan(Opened.DECLARED, 10.0, 8.0)
SECOND = HostSpan(Opened.LOST, 6.0, 5.0)


def seconds(spans: list[HostSpan], use: HostUse | None = None) -> dict[Bucket, float]:
    lines = host_lines(Resource.ENGINE, spans, use or HostUse())
    return {line.bucket: line.seconds for line in lines}


def test_a_first_start_is_starting_and_one_after_a_loss_is_infrastructure() -> None:
    found = seconds([FIRST, SECOND])
    assert found[Bucket.STARTING] == 2.0
    assert found[Bucket.INFRASTRUCTURE] == 1.0
    assert found[Bucket.IDLE_BY_SCHEDULER] == 13.0


def test_a_host_that_was_lost_before_it_was_ready_is_infrastructure() -> None:
    lost = HostSpan(Opened.DECLARED, 4.0, 0.0, is_lost=True)
    assert seconds([lost]) == {Bucket.INFRASTRUCTURE: 4.0}


def test_what_stands_still_for_tools_is_told_from_what_has_no_work() -> None:
    use = HostUse({Bucket.TRAINED: Share(3.0), Bucket.STALE: Share(1.0)}, tool_wait_s=1.5)
    assert seconds([FIRST], use) == {
        Bucket.TRAINED: 3.0,
        Bucket.STALE: 1.0,
        Bucket.STARTING: 2.0,
        Bucket.IDLE_BY_TOOL: 1.5,
        Bucket.IDLE_BY_SCHEDULER: 2.5,
    }


def test_shares_beyond_the_ready_time_are_scaled_and_never_billed_on_top() -> None:
    use = HostUse({Bucket.TRAINED: Share(12.0), Bucket.STALE: Share(4.0)}, tool_wait_s=9.0)
    assert seconds([FIRST], use) == {
        Bucket.TRAINED: 6.0,
        Bucket.STALE: 2.0,
        Bucket.STARTING: 2.0,
    }
