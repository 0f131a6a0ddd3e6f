"""Workloads: the same for everybody, and as heavy-tailed as they say."""

from statistics import median

from benchmarks.engine.workload import PRESSURE, RATE, TOKENS, Rollout, Turn, draw


def test_a_seed_gives_one_workload_and_another_seed_another() -> None:
    assert draw(RATE, 3) == draw(RATE, 3)
    assert draw(RATE, 3) != draw(RATE, 4)


def test_members_of_a_group_share_the_beginning_of_their_prompts_only() -> None:
    rollouts = draw(RATE, 1)
    assert len(rollouts) == RATE.rollouts
    first, second, other = rollouts[0], rollouts[1], rollouts[RATE.group_size]
    least, _ = RATE.shared_prompt
    assert first.group == second.group != other.group
    one, two = first.turns[0].added, second.turns[0].added
    assert one[:least] == two[:least] != other.turns[0].added[:least]
    assert one[-RATE.own_prompt :] != two[-RATE.own_prompt :]


def test_answers_have_the_median_and_the_tail_of_their_shape() -> None:
    lengths = [turn.output for seed in range(8) for one in draw(RATE, seed) for turn in one.turns]
    assert 0.85 < median(lengths) / RATE.output_median < 1.15
    assert min(lengths) >= 1
    assert RATE.output_max >= max(lengths) > 6 * median(lengths)


def test_a_context_is_its_prompts_tools_and_answers() -> None:
    rollout = Rollout(0, 0, (Turn((1, 2, 3), 5), Turn((4,), 7)))
    assert rollout.sampled == 12
    assert rollout.length == 16


def test_every_drawn_id_is_a_plain_token() -> None:
    ids = {token for one in draw(PRESSURE, 1) for turn in one.turns for token in turn.added}
    assert min(ids) >= 0
    assert max(ids) < TOKENS
