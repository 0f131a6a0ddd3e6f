"""Which task a group's ordinal names. The order is a pure function of seed, epoch and ordinal.

Training: permutation(seed, epoch)[ordinal mod n], so that the data position of a checkpoint is only
the next ordinal and the ordinals issued but not consumed. Where several datasets give the tasks, the
ordinal first names a source, by weight, and then a place in that source's own epochs
(`scheduler/mixing.py`). Evaluation: the split's first tasks, in order, the same ones at each
evaluation.
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
    RolloutId,
    TaskId,
    ordinal_of,
)
from scheduler.mixing import Source, drawn


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task as stored: its id and its JSON text."""

    task_id: TaskId
    json: str


@dataclass(frozen=True, slots=True)
class TaskBook:
    """The tasks of one job. `train` is what groups train on, `test` what evaluations use."""

    seed: int
    shuffle: bool
    train: tuple[TaskLine, ...]
    test: tuple[TaskLine, ...]
    sources: tuple[Source, ...] = ()
    """Runs of `train` that are mixed by weight; none where one source gives all."""

    def task(self, group: GroupId) -> TaskLine:
        """The task of a group, from its ordinal."""
        ordinal = ordinal_of(group)
        if ordinal >= EVALUATION_ORDINAL_BASE:
            index = (ordinal - EVALUATION_ORDINAL_BASE) % EVALUATION_ORDINALS_PER_STEP
            return self.test[index % len(self.test)]
        if len(self.sources) > 1:
            number, place = drawn(self.sources, self.seed, ordinal)
            return self.train[self._index(f"{self.seed}:{number}", place, self.sources[number])]
        whole = Source(0, len(self.train), 1.0)
        return self.train[self._index(str(self.seed), ordinal, whole)]

    def _index(self, seed: str, place: int, source: Source) -> int:
        """Index in `train` of the place-th task that is taken from a source, over all its epochs."""
        epoch, index = divmod(place, source.count)
        if self.shuffle:
            index = permutation(seed, epoch, source.count)[index]
        return source.first + index


@lru_cache(maxsize=64)
def permutation(seed: str, epoch: int, size: int) -> tuple[int, ...]:
    """Order of one epoch."""
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return tuple(order)


def rollout_seed(seed: int, rollout: RolloutId, try_: int) -> int:
    """Seed of a try: the same job seed gives the same stream for the same member.

    The attempt's id is left out on purpose: two jobs with one seed sample alike.
    """
    _, _, member = rollout.removeprefix("ro_").partition("_")
    digest = hashlib.sha256(f"{seed}:{member}:{try_}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def parse_tasks(text: str) -> tuple[TaskLine, ...]:
    """Tasks from JSON lines of `{"id": ..., ...}` as validation stored them."""
    lines = [line for line in text.splitlines() if line.strip()]
    return tuple(TaskLine(TaskId(str(json.loads(line)["id"])), line) for line in lines)
