"""Writes `tasks/train.jsonl` and `tasks/test.jsonl`: disjoint, and the same at every run.

Operand k of a task with n operands is drawn from 0 to 99 // n, so that every sum has two digits.
Tasks that hold the same operands in another order never stand in both splits.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

SEED = 20261129
TRAIN_TASKS = 2048
TEST_TASKS = 512


def make_tasks(random: Random) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Operands of the training and of the test tasks."""
    train: list[tuple[int, ...]] = []
    test: list[tuple[int, ...]] = []
    split_of: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    seen: set[tuple[int, ...]] = set()
    while len(train) < TRAIN_TASKS or len(test) < TEST_TASKS:
        count = random.randint(2, 4)
        operands = tuple(random.randint(0, 99 // count) for _ in range(count))
        chosen = test if random.random() < TEST_TASKS / (TRAIN_TASKS + TEST_TASKS) else train
        target = split_of.setdefault(tuple(sorted(operands)), chosen)
        limit = TRAIN_TASKS if target is train else TEST_TASKS
        if operands not in seen and len(target) < limit:
            seen.add(operands)
            target.append(operands)
    return train, test


def write(path: Path, split: str, tasks: list[tuple[int, ...]]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="ascii") as out:
        for number, operands in enumerate(tasks):
            prompt = "+".join(f"{operand:02d}" for operand in operands)
            record = {
                "id": f"{split}-{number:04d}",
                "prompt": prompt,
                "answer": f"{sum(operands):02d}",
                "metadata": {"operands": len(operands)},
            }
            out.write(json.dumps(record) + "\n")


def main() -> None:
    """Write both files beside this script."""
    folder = Path(__file__).parent / "tasks"
    folder.mkdir(exist_ok=True)
    train, test = make_tasks(Random(SEED))
    write(folder / "train.jsonl", "train", train)
    write(folder / "test.jsonl", "test", test)


if __name__ == "__main__":
    main()
