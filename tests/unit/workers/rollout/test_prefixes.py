"""What members of a group share on a host is compared, and forgotten with the last of them."""

from domain.ids import GroupId, RolloutId
from workers.rollout.prefixes import SharedPrefixes

GROUP = GroupId("grp_a_1")
FIRST, SECOND, THIRD = (RolloutId(f"ro_a_1_{n}") for n in range(3))


def test_one_member_shares_with_nobody() -> None:
    prefixes = SharedPrefixes()
    prefixes.join(GROUP, FIRST, (1, 2, 3))
    prefixes.join(GROUP, FIRST, (1, 2, 3))
    assert prefixes.tokens(GROUP) == 0


def test_members_share_what_all_of_them_begin_with() -> None:
    prefixes = SharedPrefixes()
    prefixes.join(GROUP, FIRST, (1, 2, 3, 4))
    prefixes.join(GROUP, SECOND, (1, 2, 3, 4, 5))
    assert prefixes.tokens(GROUP) == 4
    prefixes.join(GROUP, THIRD, (1, 2, 9))
    assert prefixes.tokens(GROUP) == 2


def test_a_group_is_forgotten_with_its_last_member() -> None:
    prefixes = SharedPrefixes()
    prefixes.join(GROUP, FIRST, (1, 2))
    prefixes.join(GROUP, SECOND, (1, 2))
    prefixes.leave(GROUP, FIRST)
    assert prefixes.tokens(GROUP) == 2
    prefixes.leave(GROUP, SECOND)
    prefixes.leave(GROUP, SECOND)
    assert prefixes.tokens(GROUP) == 0
    prefixes.join(GROUP, THIRD, (1, 2))
    assert prefixes.tokens(GROUP) == 0
