"""What a rollout host reads of a normalised spec."""

from typing import Any

import msgspec
import pytest

from kv.rules import RANKED, Eviction, Queue
from workers.rollout.job_spec import SamplingSpec, limits_of, read_spec

MANIFEST = {"name": "calc", "limits": {"max_turns": 4, "wall_s": 30.0, "pids": 64}}


def spec(**changed: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "name": "x",
        "model": {"base": "tiny-calc", "training": {"type": "full"}},
        "environments": [{"ref": "calc@1", "config": {}, "max_turns": None, "wall_s": None}],
        "rollout": {
            "group_size": 8,
            "max_tokens": None,
            "sampling": {"temperature": 0.9, "top_p": 1.0, "max_tokens_per_turn": 8, "stop": []},
        },
        "evaluation": {"tasks": 4, "sampling": {"temperature": 0.0}},
    }
    return base | changed


def test_limits_left_open_come_from_the_environments_manifest() -> None:
    read = read_spec(spec(), [MANIFEST], 512)
    limits = limits_of(read, 96, False)
    assert (limits.max_turns, limits.wall_s, limits.max_tokens_per_turn) == (4, 30.0, 8)


def test_limits_of_the_spec_win_over_the_manifest() -> None:
    environments = [{"ref": "calc@1", "max_turns": 2, "wall_s": 5}]
    limits = limits_of(read_spec(spec(environments=environments), [MANIFEST], 512), 96, False)
    assert (limits.max_turns, limits.wall_s) == (2, 5.0)


@pytest.mark.parametrize(
    ("engine", "installation", "job", "expected"),
    [(96, 512, None, 96), (96, 64, None, 64), (96, 512, 50, 50), (96, 40, 50, 40)],
)
def test_the_smallest_context_of_engine_installation_and_job_holds(
    engine: int, installation: int, job: int | None, expected: int
) -> None:
    model = {"base": "tiny-calc", "context_tokens": job}
    read = read_spec(spec(model=model), [MANIFEST], installation)
    assert limits_of(read, engine, False).context_tokens == expected


def test_evaluation_samples_as_it_says_and_otherwise_as_training() -> None:
    read = read_spec(spec(), [MANIFEST], 512)
    assert read.sampling(False) == SamplingSpec(0.9, 1.0, 8, ())
    assert read.sampling(True) == SamplingSpec(0.0, 1.0, 8, ())
    without = read_spec(spec(evaluation=None), [MANIFEST], 512)
    assert without.sampling(True) == SamplingSpec(0.9, 1.0, 8, ())


def test_a_spec_without_a_model_is_refused() -> None:
    broken = spec()
    del broken["model"]
    with pytest.raises(msgspec.ValidationError):
        read_spec(broken, [MANIFEST], 512)


def test_an_engine_obeys_the_strategy_of_its_job_and_what_is_switched_off() -> None:
    scheduling = {"strategy": "venus", "off": ["residency"], "max_staleness": 1}
    rules = read_spec(spec(scheduling=scheduling), [MANIFEST], 512).rules
    assert (rules.queue, rules.eviction) == (Queue.RANK, Eviction.RECENCY)
    assert read_spec(spec(), [MANIFEST], 512).rules == RANKED
