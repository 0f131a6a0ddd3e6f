"""Which task a group's ordinal names. The order is a pure function of seed, epoch and ordinal.

Training: permutation(seed, epoch)[ordinal mod n], so that the data position of a checkpoint is only
the next ordinal and the ordinals issued but not consumed. Where several datasets give the tasks, the
ordinal first names a source, by weight, and then a place in that source's own epochs
(`scheduler/mixing.py`). Several environments share the ordinals by weight in the same way, each with
epochs of its own. A repeat of an ordinal (`domain.ids.repeat_of`) has its task.

Evaluation: the first tasks of each environment's split, in order, each once and the same ones at each
evaluation; environments take turns, so that one that is cut short has some of each.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import lru_cache

from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    EVALUATION_ORDINALS_PER_STEP,
    GroupId,
    TaskId,
    ordinal_of,
    task_ordinal,
)
from scheduler.mixing import Source, drawn


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task as stored: its id and its JSON text."""

    task_id: TaskId
    json: str


@dataclass(frozen=True, slots=True)
class TaskBook:
    """The tasks of one environment to train on, in the order of seed and epochs."""

    seed: int | str
    shuffle: bool
    tasks: tuple[TaskLine, ...]
    sources: tuple[Source, ...] = ()
    """Runs of `tasks` that are mixed by weight; none where one source gives all."""

    def at(self, place: int) -> TaskLine:
        """The place-th task that is taken from the environment, over all its epochs."""
        if len(self.sources) > 1:
            number, before = drawn(self.sources, self.seed, place)
            return self.tasks[self._index(f"{self.seed}:{number}", before, self.sources[number])]
        whole = Source(0, len(self.tasks), 1.0)
        return self.tasks[self._index(str(self.seed), place, whole)]

    def _index(self, seed: str, place: int, source: Source) -> int:
        """Index in `tasks` of the place-th task that is taken from a source, over all its epochs."""
        epoch, index = divmod(place, source.count)
        if self.shuffle:
            index = permutation(seed, epoch, source.count)[index]
        return source.first + index


@dataclass(frozen=True, slots=True)
class JobTasks:
    """The tasks of one job. `train` is what groups train on, `test` what evaluations use: each an
    environment, in the order of the spec."""

    seed: int
    train: tuple[TaskBook, ...]
    test: tuple[tuple[TaskLine, ...], ...] = ()
    weights: tuple[float, ...] = ()
    """Shares of the groups that train on each environment; needed where there are several."""

    def environment(self, group: GroupId) -> int:
        """Place of the group's environment, from its ordinal."""
        return self._place(ordinal_of(group))[0]

    def task(self, group: GroupId) -> TaskLine:
        """The task of a group, from its ordinal."""
        ordinal = ordinal_of(group)
        environment, place = self._place(ordinal)
        if ordinal >= EVALUATION_ORDINAL_BASE:
            tasks = self.test[environment]
            return tasks[place % len(tasks)]
        return self.train[environment].at(place)

    def number(self, group: GroupId) -> int | None:
        """By what the core knows the task of a training group: the same in all epochs and repeats.

        None for evaluations, which teach it nothing. A digest, since ids have no bound of length.
        """
        if ordinal_of(group) >= EVALUATION_ORDINAL_BASE:
            return None
        name = f"{self.environment(group)}:{self.task(group).task_id}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")

    def _place(self, ordinal: int) -> tuple[int, int]:
        """The environment of an ordinal, and how many tasks were taken from it before."""
        if ordinal >= EVALUATION_ORDINAL_BASE:
            number = (ordinal - EVALUATION_ORDINAL_BASE) % EVALUATION_ORDINALS_PER_STEP
            order = turns(tuple(len(tasks) for tasks in self.test))
            return order[number % len(order)]
        wanted = task_ordinal(ordinal)
        if len(self.train) == 1:
            return 0, wanted
        sources = tuple(Source(n, 1, weight) for n, weight in enumerate(self.weights))
        return drawn(sources, f"environments:{self.seed}", wanted)


@lru_cache(maxsize=64)
def turns(sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(environment, task) of each group of an evaluation: environments take turns until each is through."""
    return tuple(
        (environment, place)
        for place in range(max(sizes))
        for environment, size in enumerate(sizes)
        if place < size
    )


@lru_cache(maxsize=64)
def permutation(seed: str, epoch: int, size: int) -> tuple[int, ...]:
    """Order of one epoch."""
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return tuple(order)


def parse_tasks(text: str) -> tuple[TaskLine, ...]:
    """Tasks from JSON lines of `{"id": ..., ...}` as validation stored them."""
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(TaskLine(TaskId(str(json.loads(line)["id"])), line) for line in lines)
