"""`adapter = "reasoning_gym"`: any dataset of that library as a single-turn environment.

Config: `dataset`, `size` and `test_size` (tasks of the splits), `seed`, an optional `prompt`
rewriting, and everything else goes to the dataset's own config. The score is the dataset's own
`score_answer` on the content of the last assistant message.

The splits are disjoint twice over: they draw from different ranges of seeds, and a question belongs
to the split that its hash says. Entries are made again at grading, from seed and index: they hold
values that JSON would change.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, cast

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

from venusrl.env import Environment, Json, Message, Rollout, Task, Turn, Unscorable, Value, reward

SPLIT_SEEDS: Final[Mapping[str, int]] = {"train": 0, "test": 1 << 30}
"""Entry i of a dataset is drawn from seed + i, so each split has a billion seeds of its own."""

TEST_SHARE: Final = 0.2
"""Share of all questions that only the test split may ask."""

DRAWS_PER_TASK: Final = 16
"""Entries drawn for one wanted task before a split is taken to have no more questions; a test
question turns up once in five draws."""

SIZE_DEFAULT: Final = 1000
TEST_SIZE_DEFAULT: Final = 256

SCORE_TIMEOUT_S: Final = 60.0
"""Some scorers search or compute symbolically."""

OWN_KEYS: Final = frozenset({"dataset", "size", "test_size", "seed", "prompt"})
"""Config keys that are not the dataset's."""


class BadConfig(Exception):
    """The config names no dataset, or one that does not exist, or values that it refuses."""


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What a task's prompt takes of a question: the pattern's group, after replacements."""

    pattern: re.Pattern[str] | None
    replace: tuple[tuple[str, str], ...]

    def __call__(self, question: str) -> str:
        text = question
        if self.pattern is not None:
            match = self.pattern.search(question)
            if match is None:
                raise BadConfig(f"the prompt pattern does not fit the question {question[:200]!r}")
            text = match.group(1)
        for old, new in self.replace:
            text = text.replace(old, new)
        return text


class ReasoningGym(Environment):
    """One question, one answer."""

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterator[Task]:
        """Distinct questions of the split, at most as many as the config asks for."""
        if split not in SPLIT_SEEDS:
            raise BadConfig(f"there is no split {split}; there are train and test")
        wanted = _whole(config, "test_size" if split == "test" else "size", 1)
        rewrite = _rewrite(config)
        count = 0
        for index, entry in itertools.islice(_entries(split, config, wanted), wanted):
            count += 1
            prompt = (Message("user", rewrite(entry["question"])),)
            place: dict[str, Json] = {"split": split, "index": index}
            yield Task(f"{split}-{index}", prompt, entry["answer"], place)
        if count == 0:
            raise BadConfig(f"dataset {config['dataset']} gives no question for split {split}")

    async def reply(self, turn: Turn) -> None:
        """The first answer is final."""

    @reward(weight=1.0, timeout_s=SCORE_TIMEOUT_S)
    async def score(self, rollout: Rollout) -> Value:
        """The dataset's own score of the answer."""
        place = rollout.task.metadata
        split, index = str(place["split"]), cast(int, place["index"])
        dataset = _dataset(split, self.config)
        entry = dataset[index]
        if _rewrite(self.config)(entry["question"]) != rollout.task.prompt[-1].content:
            return Unscorable("not_reproducible", f"entry {index} asks another question now")
        return float(dataset.score_answer(rollout.answer_text.strip(), entry))


def _entries(
    split: str, config: Mapping[str, Json], wanted: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Index and entry of distinct questions that belong to the split."""
    dataset = _dataset(split, config)
    seen: set[str] = set()
    for index in range(wanted * DRAWS_PER_TASK):
        entry = dataset[index]
        question = entry["question"]
        if question not in seen and _split_of(question) == split:
            seen.add(question)
            yield index, entry


def _split_of(question: str) -> str:
    drawn = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") / 2**64
    return "test" if drawn < TEST_SHARE else "train"


def _dataset(split: str, config: Mapping[str, Json]) -> Any:
    """The library's dataset of a split; made once a process."""
    own = {key: value for key, value in config.items() if key not in OWN_KEYS}
    wanted = _whole(config, "test_size" if split == "test" else "size", 1)
    seed = _whole(config, "seed", 0) + SPLIT_SEEDS[split]
    return _make(str(config.get("dataset")), seed, wanted * DRAWS_PER_TASK, _Frozen(own))


class _Frozen(dict[str, Json]):
    """A dataset's config as a key of the cache; equal configs are one dataset."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))


@lru_cache(maxsize=8)
def _make(name: str, seed: int, size: int, own: _Frozen) -> Any:
    if name not in DATASETS:
        near = ", ".join(get_close_matches(name, sorted(DATASETS), n=3))
        raise BadConfig(f"unknown dataset {name}; near names: {near or 'none'}")
    parts = dict(own)
    if name == "composite":
        specs = cast("list[dict[str, Any]]", parts.get("datasets", []))
        parts["datasets"] = cast(Json, [DatasetSpec(**spec) for spec in specs])
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **parts)
    except (AssertionError, TypeError, ValueError) as error:
        raise BadConfig(f"dataset {name} refuses its config: {error}") from error


def _whole(config: Mapping[str, Json], key: str, low: int) -> int:
    defaults = {"size": SIZE_DEFAULT, "test_size": TEST_SIZE_DEFAULT, "seed": 0}
    value = config.get(key, defaults[key])
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 29:
        raise BadConfig(f"{key} must be a whole number of at least {low}")
    return value


def _rewrite(config: Mapping[str, Json]) -> _Rewrite:
    prompt = config.get("prompt", {})
    if not isinstance(prompt, Mapping):
        raise BadConfig("prompt must be a table with pattern and replace")
    pattern, replace = prompt.get("pattern"), prompt.get("replace", {})
    if not isinstance(replace, Mapping):
        raise BadConfig("prompt.replace must map text to text")
    try:
        compiled = None if pattern is None else re.compile(str(pattern), re.DOTALL)
    except re.error as error:
        raise BadConfig(f"prompt.pattern: {error}") from error
    if compiled is not None and compiled.groups < 1:
        raise BadConfig("prompt.pattern must have a group")
    return _Rewrite(compiled, tuple((old, str(new)) for old, new in replace.items()))
