"""A branch of a recorded rollout: continuations from before a turn, or from before each of some.

Results are rows of the operation and one trajectory a continuation in the object store. No group, no
batch and no step ever knows of them, so nothing of a branch is trained.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from domain.errors import ObjectNotWritten, PayloadUnreadable
from domain.ids import TaskId
from domain.trajectory import Trajectory
from infra.clock import SystemClock
from infra.codec import convert, to_msgpack
from infra.names import branch_path
from sandboxes.runtimes.process import ProcessRuntime
from stores.blobs import Blob, sha256
from stores.system.operations import TakenOperation
from venusrl.env.host.artefacts import STATE_ARTEFACT
from venusrl.env.host.cases import case_record
from venusrl.env.host.episode import Stage
from venusrl.env.host.manifest import PackageInvalid, read_manifest
from venusrl.env.host.ports import EnvironmentFault
from venusrl.env.messages import Json
from venusrl.env.values import Unscorable
from venusrl.env.wire import messages_from_json
from workers.chores.branch_files import differing, sum_of
from workers.chores.branch_play import Ended, OutOfTime, Scene, play_border
from workers.chores.branch_source import BranchRequest, Source, read_source
from workers.chores.case_sandboxes import CaseSandboxes
from workers.chores.environment_players import Model, loaded
from workers.chores.environments import built_folder, fetched
from workers.chores.generate import saved_checkpoint
from workers.chores.handling import ChoreFailed, ChoreTools, storable
from workers.fleet.environment_pool import EnvironmentKey
from workers.fleet.packages import Package
from workers.fleet.starting import EnvironmentStarter
from workers.rollout.embedded.engine import EngineLimits

BRANCH_S: Final = 200.0
"""Of all borders together; the rest of a chore's time is for the model, the start and the grading."""

RUNTIME: Final = "process"
"""Where chores play. Its sandboxes have no frozen memory: a border is its files, made by replay."""

CASE_ENDS: Final = ("done", "turn_limit")
"""Ends that a script reaches; a cut answer or a limit of time is no turn of one."""


async def branch(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Play and report. Raises ChoreFailed with a closed code."""
    try:
        request = convert(dict(operation.request), BranchRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    source = await read_source(tools, operation, request)
    saved = await saved_checkpoint(tools, operation, request.checkpoint_id)
    deadline = time.monotonic() + BRANCH_S
    async with (
        _staged(tools, source) as (stage, runtime),
        loaded(saved, EngineLimits(slots=request.n)) as model,
    ):
        scene = _scene((operation.operation_id, source, request), (stage, runtime, model), deadline)
        borders, late = await _play(tools, scene)
    report: dict[str, object] = _clean(
        {
            "branch_id": operation.operation_id,
            "rollout_id": source.rollout_id,
            "checkpoint_id": request.checkpoint_id,
            "policy_version": saved.step,
            "runtime": RUNTIME,
            "restored": "files",
            "tool_output": request.tool_output is not None,
            "borders": borders,
            "not_played": late,
        }
    )
    return report


@asynccontextmanager
async def _staged(tools: ChoreTools, source: Source) -> AsyncIterator[tuple[Stage, ProcessRuntime]]:
    """The environment as the job gives it its configuration, its secrets and its judges."""
    starter = EnvironmentStarter(tools.settings, tools.database, SystemClock())
    with tempfile.TemporaryDirectory(prefix="venus-branch-") as folder:
        target = await fetched(tools, source.version_id, Path(folder))
        config_json = json.dumps(source.config, sort_keys=True)
        key = EnvironmentKey(source.attempt_id, source.version_id, config_json)
        try:
            package = Package(target, read_manifest(target), await built_folder(tools, target))
            process = await starter.start(key, package, source.config)
        except PackageInvalid as error:
            raise ChoreFailed("package_invalid", str(error)) from error
        except EnvironmentFault as fault:
            raise ChoreFailed(fault.cause, storable(fault.detail)) from fault
        try:
            runtime = ProcessRuntime(target.parent / "guest")
            try:
                sandboxes = CaseSandboxes(runtime, target)
                yield Stage(process, package.manifest, sandboxes), runtime
            finally:
                await runtime.close()
        finally:
            await process.stop()
            await starter.close()


def _scene(
    asked: tuple[str, Source, BranchRequest],
    made: tuple[Stage, ProcessRuntime, Model],
    deadline: float,
) -> Scene:
    (branch_id, source, request), (stage, runtime, model) = asked, made
    sampling = source.sampling
    if request.temperature is not None:
        sampling = replace(sampling, temperature=request.temperature)
    return Scene(
        branch=branch_id,
        source=source,
        asked=request,
        stage=stage,
        runtime=runtime,
        model=model,
        limits=source.limits(stage.manifest, model.folder.config.max_position_embeddings),
        sampling=sampling,
        deadline=deadline,
    )


async def _play(tools: ChoreTools, scene: Scene) -> tuple[list[dict[str, Any]], list[int]]:
    """Reports of the borders, and the turns for which the time was up."""
    borders: list[dict[str, Any]] = []
    turns = scene.asked.turns
    for number, turn in enumerate(turns):
        try:
            ended = await play_border(scene, turn)
        except OutOfTime:
            if not borders:
                raise
            return borders, list(turns[number:])
        blobs = await asyncio.gather(*(_store(tools, scene, turn, one) for one in ended))
        borders.append(_border(scene, turn, ended, blobs))
    return borders, []


async def _store(tools: ChoreTools, scene: Scene, turn: int, one: Ended) -> Blob:
    """The trajectory of a continuation."""
    source, live = scene.source, one.live
    record = Trajectory(
        rollout_id=scene.name(turn, live.index),
        group_id=source.group_id,
        task_id=TaskId(source.task.id),
        try_=source.record.try_,
        hop=0,
        end=one.ending.end.value,
        segments=live.episode.segments(),
        turns=live.episode.spans,
        messages=live.episode.messages,
        artefacts={**one.artefacts, STATE_ARTEFACT: json.dumps(live.state)},
        cause=one.ending.cause,
        rewrites=live.episode.rewrites,
    )
    data = to_msgpack(record)
    path = branch_path(source.job_id, scene.branch, f"{turn}-{live.index}", sha256(data))
    try:
        return await tools.blobs.create(path, data)
    except (FileExistsError, ObjectNotWritten, PayloadUnreadable) as error:
        raise ChoreFailed("store_away", str(error)) from error


def _border(
    scene: Scene, turn: int, ended: Sequence[Ended], blobs: Sequence[Blob]
) -> dict[str, Any]:
    """What a border gave; its row of the curve is `passed` of `scored`."""
    continuations = [
        _continuation(scene, turn, one, blob) for one, blob in zip(ended, blobs, strict=True)
    ]
    rewards = [float(one["reward"]) for one in continuations if one["reward"] is not None]
    passed = sum(one["passed"] is True for one in continuations)
    listings = [one.live.files for one in ended if one.live.files is not None]
    span = scene.source.record.turns[turn]
    return {
        "turn": turn,
        "prefix_tokens": span.start,
        "live": sum(one.live.is_at_border for one in ended),
        "files": len(listings[0]) if listings else None,
        "differing_files": differing(listings),
        "scored": len(rewards),
        "passed": passed,
        "pass_rate": passed / len(rewards) if rewards else None,
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "continuations": continuations,
    }


def _continuation(scene: Scene, turn: int, one: Ended, blob: Blob) -> dict[str, Any]:
    live, grade = one.live, one.grade
    total = None if grade is None else grade.total
    reward = None if total is None or isinstance(total, Unscorable) else float(total)
    why = total.reason if isinstance(total, Unscorable) else one.ending.end.value
    return {
        "index": live.index,
        "end": one.ending.end.value,
        "cause": one.ending.cause,
        "verdict": "unscorable" if reward is None else "scored",
        "reward": reward,
        "passed": None if reward is None or grade is None else reward >= grade.full_marks,
        "unscorable_reason": why if reward is None else None,
        "components": _components(one),
        "turns": live.episode.turns,
        "tokens": live.episode.tokens,
        "sampled_tokens": sum(sum(s.mask) for s in live.episode.segments()),
        "files_sha256": None if live.files is None else sum_of(live.files),
        "trajectory": asdict(blob),
        "case": _case(scene, turn, one, reward),
    }


def _components(one: Ended) -> dict[str, object]:
    if one.grade is None:
        return {}
    return {
        name: value.reason if isinstance(value, Unscorable) else value
        for name, value in one.grade.components.items()
    }


def _case(scene: Scene, turn: int, one: Ended, reward: float | None) -> Mapping[str, Json] | None:
    """The continuation as a line of `cases/*.jsonl`, if a script can say it."""
    end, source = one.ending.end.value, scene.source
    is_scripted = end in CASE_ENDS and not one.live.episode.rewrites
    if reward is None or not is_scripted or scene.asked.tool_output is not None:
        return None
    messages = messages_from_json(cast("Sequence[Json]", one.live.episode.messages))
    return case_record(
        f"{source.rollout_id} branched at turn {turn}, {one.live.index}",
        (source.split, source.task),
        messages[len(source.task.prompt) :],
        {"end": end, "total": reward},
    )


def _clean(value: Any) -> Any:
    """What user code said, as a JSON column holds it."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(str(name)): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value
