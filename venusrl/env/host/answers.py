"""Reads what a runner answers. It executes user code, so that every field is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from venusrl.env.host.judges import JudgeUses
from venusrl.env.host.ports import EnvironmentInfo, Observation, RolloutGrade
from venusrl.env.messages import Json, Rollout
from venusrl.env.rewards import REWARD_TIMEOUT_S_MAX, ComponentKind, ComponentSpec
from venusrl.env.values import Value, weighted_total
from venusrl.env.wire import (
    BadRecord,
    Record,
    as_record,
    float_field,
    list_field,
    messages_from_json,
    text_field,
    value_from_json,
)


def info_of(record: Record) -> EnvironmentInfo:
    """The answer to `start`. Raises BadRecord."""
    components = []
    for one in list_field(record, "components"):
        part = as_record(one, "a component")
        kind = text_field(part, "kind")
        if kind not in ("reward", "group_reward", "metric"):
            raise BadRecord(f"unknown kind {kind[:32]}")
        weight, timeout_s = float_field(part, "weight"), float_field(part, "timeout_s")
        if not math.isfinite(weight) or not 0 < timeout_s <= REWARD_TIMEOUT_S_MAX:
            raise BadRecord("a component's weight or timeout is out of range")
        name = text_field(part, "name")
        components.append(ComponentSpec(name, cast(ComponentKind, kind), weight, timeout_s))
    tools = tuple(as_record(one, "a tool") for one in list_field(record, "tools"))
    return EnvironmentInfo(tools, tuple(components))


def observation_of(record: Record) -> Observation:
    """The answer to `reply`. Raises BadRecord."""
    if record.get("messages") is None:
        return Observation(None, record.get("state"))
    messages = messages_from_json(list_field(record, "messages"))
    return Observation(messages, record.get("state"), record.get("is_rewrite") is True)


def grades_of(
    info: EnvironmentInfo,
    rollouts: Sequence[Rollout],
    answer: Json,
    judges: Mapping[str, JudgeUses],
) -> tuple[RolloutGrade, ...]:
    """The answer to `grade`, in the order of `rollouts`. Raises BadRecord."""
    if not isinstance(answer, list) or len(answer) != len(rollouts):
        raise BadRecord("a grade must answer for each rollout")
    grades = []
    for rollout, one in zip(rollouts, answer, strict=True):
        record = as_record(one, "a verdict")
        components: dict[str, Value] = {}
        metrics: dict[str, float] = {}
        for spec in info.components:
            if spec.name not in record:
                raise BadRecord(f"component {spec.name} is missing")
            value = value_from_json(record[spec.name])
            if spec.kind != "metric":
                components[spec.name] = value
            elif isinstance(value, float):
                metrics[spec.name] = value
        total = weighted_total(components, info.weights)
        uses = judges.get(rollout.id, {})
        grades.append(RolloutGrade(rollout.id, components, total, metrics, uses, info.full_marks))
    return tuple(grades)
