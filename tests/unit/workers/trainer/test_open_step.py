"""The step being filled follows the rows."""

from domain.ids import GroupId, RolloutId
from stores.system.training import Member, PayloadRef
from workers.trainer.open_step import OpenStep


def ref(name: str) -> PayloadRef:
    return PayloadRef(GroupId(name), f"uri/{name}", "sha")


def members(*names: str) -> list[Member]:
    return [Member(position, 0, ref(name)) for position, name in enumerate(names)]


def filled(*names: str, batch: int = 3) -> OpenStep:
    step = OpenStep(1, batch)
    for name in names:
        step.record(ref(name), (RolloutId(f"ro_{name}"),))
    return step


def test_new_members_are_added_in_order_of_assignment() -> None:
    plan = filled("b").plan(members("a", "b", "c"))
    assert not plan.rebuild
    assert [r.group_id for r in plan.add] == ["a", "c"]


def test_a_repeated_look_adds_nothing() -> None:
    plan = filled("a", "b").plan(members("a", "b"))
    assert plan == type(plan)(rebuild=False, add=())


def test_a_member_that_left_forces_a_rebuild_of_the_others_in_their_order() -> None:
    plan = filled("c", "a", "b").plan(members("b", "d", "c"))
    assert plan.rebuild
    assert [r.group_id for r in plan.add] == ["c", "b", "d"]


def test_a_lost_or_excluded_group_is_never_added_again() -> None:
    step = filled("a")
    step.lost[GroupId("b")] = "gone"
    step.excluded.append(GroupId("c"))
    assert step.plan(members("a", "b", "c")).add == ()


def test_without_streaming_nothing_is_due_before_every_position_is_filled() -> None:
    step = filled()
    assert step.is_due(members("a"), streams=True)
    assert not step.is_due(members("a", "b"), streams=False)
    assert step.is_due(members("a", "b", "c"), streams=False)


def test_a_step_is_complete_when_all_positions_are_settled() -> None:
    assert filled("a", "b", "c").is_complete(members("a", "b", "c"))
    assert not filled("a", "b").is_complete(members("a", "b"))
    assert not filled("a", "b").is_complete(members("a", "b", "c"))


def test_an_excluded_group_is_settled_and_a_lost_one_is_not() -> None:
    step = filled("a", "b")
    step.excluded.append(GroupId("c"))
    assert step.is_complete(members("a", "b", "c"))
    step = filled("a", "b")
    step.lost[GroupId("c")] = "gone"
    assert not step.is_complete(members("a", "b", "c"))


def test_an_excluded_group_that_was_replaced_is_forgotten() -> None:
    step = filled("a", "b")
    step.excluded.append(GroupId("c"))
    step.forget_departed(members("a", "b", "d"))
    assert step.excluded == []
