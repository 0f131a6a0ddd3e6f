"""The episode queue on its own."""

from scheduler.core.strategies.episodes import EpisodeQueue


def test_with_nothing_consumed_two_then_three_then_two_episodes_are_open() -> None:
    queue = EpisodeQueue(ratio=1)
    counts = []
    for step in range(3):
        queue.advance(step)
        counts.append(len(queue.episodes))
    assert counts == [2, 3, 2]


def test_a_step_returns_the_episodes_that_it_makes_too_old() -> None:
    queue = EpisodeQueue(ratio=1)
    queue.advance(0)
    assert queue.advance(1) == []
    assert [episode.number for episode in queue.advance(2)] == [0, 1]


def test_a_synchronous_queue_holds_one_episode_at_a_time() -> None:
    queue = EpisodeQueue(ratio=0)
    queue.advance(0)
    assert len(queue.episodes) == 1
    assert [episode.number for episode in queue.advance(1)] == [0]
    assert len(queue.episodes) == 1


def test_the_head_is_the_smallest_episode_whatever_is_behind_it() -> None:
    queue = EpisodeQueue(ratio=1)
    queue.advance(0)
    queue.episodes[1].ordinal = 7
    head = queue.head()
    assert head is not None
    assert head.number == 0


def test_an_episode_that_was_filtered_out_is_replaced_in_the_same_step() -> None:
    queue = EpisodeQueue(ratio=0)
    queue.advance(3)
    queue.episodes[0].ordinal = 5
    queue.remove(5)
    queue.refill()
    assert [(e.number, e.created_at_step) for e in queue.episodes] == [(1, 3)]


def test_without_expiry_nothing_leaves_at_a_step() -> None:
    queue = EpisodeQueue(ratio=0)
    queue.advance(0)
    assert queue.advance(5, expires=False) == []
    assert len(queue.episodes) == 2
