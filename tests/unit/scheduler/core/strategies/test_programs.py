"""ThunderAgent's accounting on its own."""

from domain.ids import GroupId, HostId, RolloutId
from scheduler.core.strategies.programs import (
    Phase,
    Program,
    ProgramRules,
    choose_pauses,
    choose_resumes,
    used_tokens,
)

UPSTREAM = ProgramRules()
PAPER = ProgramRules(decay=True, counts_marks=True, shares_prefix=True)
ENGINE = HostId("host_a_engine0")
OTHER = HostId("host_a_engine1")


def program(name: str, tokens: int, phase: Phase = Phase.REASONING, steps: int = 2) -> Program:
    return Program(
        RolloutId(name), GroupId("grp_0"), tokens, phase=phase, steps=steps, engine=ENGINE
    )


def names(programs: list[Program]) -> list[str]:
    return [one.rollout_id for one in programs]


def five() -> list[Program]:
    """Five programs that reason, 3,000 tokens more than an engine of 17,500 holds."""
    return [program(f"r{index}", 4000) for index in range(5)]


def test_upstream_marks_all_five_generating_programs_on_a_small_overflow() -> None:
    paused, marked = choose_pauses(five(), 17_500, UPSTREAM)
    assert (len(paused), len(marked)) == (0, 5)


def test_the_paper_marks_only_what_covers_the_overflow() -> None:
    _, marked = choose_pauses(five(), 17_500, PAPER)
    assert len(marked) == 1


def test_marks_of_an_earlier_check_count_in_the_paper() -> None:
    programs = five()
    programs[0].is_marked = True
    assert choose_pauses(programs, 17_500, PAPER) == ([], [])


def test_the_smallest_acting_program_is_paused_before_any_reasoning_one_is_marked() -> None:
    acting = [program("a-big", 900, Phase.ACTING), program("a-small", 300, Phase.ACTING)]
    paused, marked = choose_pauses([program("r", 100), *acting], 1400, UPSTREAM)
    assert (names(paused), names(marked)) == (["a-small"], [])


def test_nothing_is_paused_while_all_fits() -> None:
    assert choose_pauses(five(), 20_500, UPSTREAM) == ([], [])


def test_each_program_is_charged_its_tokens_and_a_buffer() -> None:
    assert used_tokens([program("a", 10), program("b", 20)], UPSTREAM) == 230


def test_upstream_charges_a_shared_prefix_to_each_member_and_the_paper_once() -> None:
    group = [program(f"r{index}", 1000) for index in range(3)]
    for member in group:
        member.shared_tokens = 800
    assert used_tokens(group, UPSTREAM) == 3 * 1000 + 300
    assert used_tokens(group, PAPER) == 800 + 3 * 200 + 300


def test_the_charge_of_a_tool_halves_each_second_only_in_a_resume() -> None:
    acting = program("a", 800, Phase.ACTING)
    acting.acting_since = 10.0
    assert used_tokens([acting], PAPER) == 900
    assert used_tokens([acting], PAPER, now=12.0) == 300
    assert used_tokens([acting], UPSTREAM, now=12.0) == 900


def paused(name: str, tokens: int, phase: Phase = Phase.REASONING, steps: int = 2) -> Program:
    one = program(name, tokens, phase, steps)
    one.engine = None
    return one


def test_waiting_turns_resume_before_new_programs_and_those_before_tools() -> None:
    waiting = [
        paused("acting", 100, Phase.ACTING),
        paused("new", 100, steps=1),
        paused("reasoning", 100),
    ]
    resumed = choose_resumes(waiting, {ENGINE: 400.0}, UPSTREAM)
    assert names([one for one, _ in resumed]) == ["new", "reasoning"]


def test_the_smallest_resume_first_and_are_packed_largest_first_where_most_room_is() -> None:
    waiting = [paused("big", 900), paused("mid", 500), paused("small", 300)]
    resumed = choose_resumes(waiting, {ENGINE: 700.0, OTHER: 600.0}, UPSTREAM)
    assert [(one.rollout_id, engine) for one, engine in resumed] == [
        ("mid", ENGINE),
        ("small", OTHER),
    ]


def test_a_program_that_fits_the_sum_and_no_engine_goes_on_waiting() -> None:
    resumed = choose_resumes([paused("big", 900)], {ENGINE: 600.0, OTHER: 600.0}, UPSTREAM)
    assert resumed == []
