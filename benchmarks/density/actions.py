"""What the agents of the density run do: the same commands at any density, drawn by the rollout's place.

Of every group one member fixes the bug and the other does not, so that each has a signal. Commands say
nothing of time, so that what a rollout saw can be compared by its text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

from environments.builtin.shell.generate_tasks import Repository, repositories

GROUP_SIZE: Final = 2
"""The least that a job may have: so few sandboxes are at once at the lowest density."""

SPLIT: Final = "train"

LOOK: Final = "cat app/core.py | head -n 3; ls tests"
TEST: Final = "python3 -m unittest -q 2>&1 | grep -v '^Ran '"
"""Without the line that says how long it took."""

FLOOD: Final = "python3 -c \"print('x' * 200000)\""
CROWD: Final = "for n in 1 2 3 4; do python3 -c 'print(sum(range(300000)))' & done; wait"
MEMORY: Final = 'python3 -c "print(len(bytearray(48 * 1024 * 1024)))"'
WEAKEN: Final = "printf 'import unittest\\n' > tests/test_app.py"
FILL: Final = "dd if=/dev/zero of=/tmp/fill bs=1M count=8 2>/dev/null; wc -c < /tmp/fill"

ODD: Final = (LOOK, TEST, FLOOD, CROWD, MEMORY, WEAKEN, FILL)


LAZY_SHARE: Final = 0.3
"""Of those that fix nothing: they only look."""


@dataclass(frozen=True, slots=True)
class Script:
    """One rollout's commands, one a turn; then it is done."""

    commands: tuple[str, ...]
    is_right: bool
    """Whether it fixes the bug."""


@cache
def tasks() -> tuple[Repository, ...]:
    """Repositories in the order in which a job that does not shuffle sees them."""
    return tuple(repositories(SPLIT))


def script_of(seed: int, ordinal: int, index: int) -> Script:
    """The rollout at this place of the group with this ordinal; groups repeat the tasks."""
    every = tasks()
    task = every[ordinal % len(every)]
    random = Random(f"{seed}:{ordinal}:{index}")
    odd = random.sample(ODD, random.randrange(1, 4))
    if index == 0:
        odd.insert(random.randrange(len(odd) + 1), fix(task))
        return Script((*odd, TEST), is_right=True)
    if random.random() < LAZY_SHARE:
        return Script((LOOK,), is_right=False)
    return Script((*odd, spoil(task)), is_right=False)


def fix(task: Repository) -> str:
    """Writes the right content of the file with the bug."""
    return "\n".join(_written(path, task.right[path]) for path in changed(task))


def spoil(task: Repository) -> str:
    """Leaves a file that cannot be imported."""
    return "\n".join(_written(path, task.broken[path] + "\n)\n") for path in changed(task))


def changed(task: Repository) -> Sequence[str]:
    """Files in which the bug is."""
    return [path for path in task.right if task.right[path] != task.broken[path]]


def _written(path: str, content: str) -> str:
    return f"cat > {path} <<'END'\n{content.rstrip()}\nEND"
