"""A decision that cannot be reproduced from the log is a defect."""

import pytest

from domain.commands import Command
from tests.property.worlds import random_world, run_out
from tests.replays.replay import replay


@pytest.mark.parametrize("seed", [1, 5, 8, 13])
def test_the_log_of_a_faulty_run_gives_the_same_commands_again(seed: int) -> None:
    world, jobs, chance = random_world(seed)
    run_out(world, jobs, chance)
    _, again = replay(world.pool, world.events)
    decided: list[Command] = [command for _, command in world.log]
    assert again == decided
