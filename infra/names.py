"""Names that processes agree on: Celery tasks and queues, object-store paths."""

from typing import Final

from domain.ids import AttemptId, CheckpointId, GroupId, JobId, RolloutId

HOST_TASK: Final = "venus.host"
"""Celery task `host(id, epoch)`: wakes a keeper, carries no truth."""

CHORE_TASK: Final = "venus.chore"
"""Celery task `chore(operation id)`: wakes a worker for a row of `operation`."""

PLAN_TASK: Final = "venus.plan"
"""Celery task `plan(operation id)`: as `chore`, for forecasts, which nobody else shall wait behind."""

DELIVER_TASK: Final = "venus.deliver"
"""Celery task `deliver()`: wakes a worker for due rows of `webhook_delivery`."""

TIDY_TASK: Final = "venus.tidy"
"""Celery task `tidy()`: wakes a worker that deletes segments of the event log past their age."""

GENERATE: Final = "generate"
VALIDATE_ENVIRONMENT: Final = "validate_environment"
TEST_ENVIRONMENT: Final = "test_environment"
PREPARE_JOB: Final = "prepare_job"
IMPORT_MODEL: Final = "import_model"
VALIDATE_DATASET: Final = "validate_dataset"
EXPORT_CHECKPOINT: Final = "export_checkpoint"
CLEAN_JOB: Final = "clean_job"
PLAN: Final = "plan"
BRANCH_ROLLOUT: Final = "branch_rollout"
"""Kinds of operations."""

HOST_QUEUE: Final = "hosts"
CHORE_QUEUE: Final = "chores"
PLAN_QUEUE: Final = "plans"


def chore_task(kind: str) -> str:
    """The Celery task that does operations of this kind."""
    return PLAN_TASK if kind == PLAN else CHORE_TASK


def trajectory_path(job: JobId, rollout: RolloutId, try_: int, hop: int) -> str:
    """Create-only path of one finished try's trajectory (msgpack of domain Trajectory)."""
    return f"jobs/{job}/trajectories/{rollout}/t{try_}-h{hop}.msgpack"


def payload_path(job: JobId, group: GroupId, grade_epoch: int) -> str:
    """Create-only path of a graded group's payload (msgpack of domain GroupPayload)."""
    return f"jobs/{job}/groups/{group}/g{grade_epoch}.msgpack"


def weights_path(job: JobId, attempt: AttemptId, step: int, epoch: int) -> str:
    """Path of published weights; the trainer's epoch fences a zombie's file from the real one."""
    return f"jobs/{job}/attempts/{attempt}/weights/{step:08d}-e{epoch}.safetensors"


def probe_path(job: JobId, attempt: AttemptId, step: int, epoch: int) -> str:
    """Path of the probe (JSON of domain.engine.Probe) that belongs to the weights."""
    return f"jobs/{job}/attempts/{attempt}/weights/{step:08d}-e{epoch}.probe.json"


def branch_path(job: JobId, branch: str, place: str, sha: str) -> str:
    """Trajectory of one continuation of a branch, by its content; goes with its job's trajectories."""
    return f"jobs/{job}/trajectories/branches/{branch}/{place}-{sha[:16]}.msgpack"


def checkpoint_prefix(job: JobId, checkpoint: CheckpointId, epoch: int) -> str:
    """Folder of a checkpoint; `manifest.json` in it is written last and is the commit point."""
    return f"jobs/{job}/checkpoints/{checkpoint}-e{epoch}"


def export_path(job: JobId, checkpoint: CheckpointId) -> str:
    """A checkpoint's bundle for use elsewhere; the same bytes whenever it is made."""
    return f"jobs/{job}/exports/{checkpoint}.safetensors.tar"


def output_path(attempt: AttemptId, output: str) -> str:
    """What a try, a grader or an environment's process printed, as JSON lines `[seconds, text]`."""
    return f"{output_folder(attempt)}/{output}.jsonl"


def output_folder(attempt: str) -> str:
    """Folder of everything that an attempt's environments printed."""
    return f"outputs/{attempt}"


def package_path(content_sha: str) -> str:
    """Content-addressed environment package archive."""
    return f"environments/{content_sha}.tar.gz"


def dependencies_path(key: str) -> str:
    """What a build of requirements left: names the archive. Created last, it is the commit point."""
    return f"dependencies/{key}.json"


def dependency_archive_path(key: str, sha: str) -> str:
    """Content-addressed archive of one build; two builds of a key may differ in bytes."""
    return f"dependencies/{key}-{sha}.tar.gz"


def model_path(model: str, file: str) -> str:
    """File of an imported model; `file` is of the closed set of names of a model folder."""
    return f"models/{model}/{file}"


def dataset_path(version: str, split: str) -> str:
    """Rows of one split of a dataset version, as they were uploaded; the split's name is checked."""
    return f"datasets/{version}/{split}.jsonl"


def tasks_path(sha: str) -> str:
    """Content-addressed task list of one split under one configuration, as JSON lines."""
    return f"tasks/{sha}.jsonl"


EVENT_LOG_FOLDER: Final = "event-log"
"""Folder of all terms' event logs."""


def event_log_path(term: int, opened_ms: int, segment: int, first_ms: int) -> str:
    """Create-only path of a segment; the name alone says its place, and how old it is."""
    name = f"{opened_ms:013d}-{segment:08d}-{first_ms:013d}.segment"
    return f"{EVENT_LOG_FOLDER}/{event_log_folder(term)}/{name}"


def event_log_folder(term: int) -> str:
    """Folder of a term's segments inside `EVENT_LOG_FOLDER`."""
    return f"{term:010d}"


def first_ms_of(path: str) -> int | None:
    """Wall-clock milliseconds of a segment's first record, from its name; None for other objects."""
    name, _, ending = path.rpartition("/")[2].partition(".")
    parts = name.split("-")
    is_segment = ending == "segment" and len(parts) == 3 and parts[2].isdigit()
    return int(parts[2]) if is_segment else None
