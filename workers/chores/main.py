"""A chore's own process: `python -m workers.chores.main OPERATION`.

Heavy imports and code that may kill its process stay out of the Celery child. Exit status 0 means
that the operation needs no more work from anybody; anything else means: start it again, within the
bound that the row counts.
"""

import asyncio
import importlib
import sys
from collections.abc import Mapping
from typing import Final, cast

from domain.errors import StoreUnavailable
from infra import failpoints
from infra.logging import configure, get_logger
from infra.names import (
    BRANCH_ROLLOUT,
    CLEAN_JOB,
    EXPORT_CHECKPOINT,
    GENERATE,
    IMPORT_MODEL,
    PLAN,
    PREPARE_JOB,
    TEST_ENVIRONMENT,
    VALIDATE_DATASET,
    VALIDATE_ENVIRONMENT,
)
from infra.settings import Settings
from stores.blobs import Blobs
from stores.system import operations
from stores.system.operations import TakenOperation
from stores.unit_of_work import Database
from workers.chores.handling import ChoreFailed, ChoreTools, Handler

HANDLERS: Final[Mapping[str, str]] = {
    GENERATE: "workers.chores.generate:generate",
    VALIDATE_ENVIRONMENT: "workers.chores.environments:validate",
    TEST_ENVIRONMENT: "workers.chores.environment_tests:test",
    PREPARE_JOB: "workers.chores.jobs:prepare",
    IMPORT_MODEL: "workers.chores.models:import_model",
    VALIDATE_DATASET: "workers.chores.datasets:validate",
    EXPORT_CHECKPOINT: "workers.chores.exports:export",
    CLEAN_JOB: "workers.chores.clean:clean",
    PLAN: "workers.chores.plans:plan",
    BRANCH_ROLLOUT: "workers.chores.branches:branch",
}
"""Kind of operation to `module:function`; imported when needed, torch is in some of them."""

EXIT_AGAIN: Final = 75
"""The database was away: nothing is known to be wrong with the operation."""

TAKEN: Final = "chore.taken"
"""Failpoint after the start was counted and before any work."""


async def run(settings: Settings, operation_id: str) -> int:
    """Do one operation; returns the exit status."""
    database = Database(settings.database_url, 2)
    tools = ChoreTools(settings, database, Blobs(settings.object_store_url))
    try:
        async with database.begin() as connection:
            operation = await operations.take(connection, operation_id)
        if operation is not None:
            failpoints.hit(TAKEN)
            await _do(tools, operation)
    except StoreUnavailable as error:
        get_logger().warning("database.away", operation_id=operation_id, cause=str(error))
        return EXIT_AGAIN
    finally:
        await database.close()
    return 0


async def _do(tools: ChoreTools, operation: TakenOperation) -> None:
    log = get_logger().bind(operation_id=operation.operation_id, kind=operation.kind)
    try:
        result = await _handler(operation.kind)(tools, operation)
    except ChoreFailed as failed:
        log.info("chore.failed", code=failed.code)
        await _fail(tools, operation, failed.code, str(failed))
        return
    except StoreUnavailable:
        raise
    except Exception as error:  # the process edge: recorded for the caller, then it ends
        log.exception("chore.crashed")
        await _fail(tools, operation, "internal", type(error).__name__)
        raise
    async with tools.database.begin() as connection:
        await operations.finish(connection, operation.operation_id, result)
    log.info("chore.done")


async def _fail(tools: ChoreTools, operation: TakenOperation, code: str, detail: str) -> None:
    async with tools.database.begin() as connection:
        await operations.fail(connection, operation.operation_id, code, detail)


def _handler(kind: str) -> Handler:
    if kind not in HANDLERS:
        raise ChoreFailed("unknown_kind", f"no chore does {kind!r}")
    module, _, function = HANDLERS[kind].partition(":")
    return cast("Handler", getattr(importlib.import_module(module), function))


def main() -> None:
    """Entry of the process."""
    settings = Settings.from_env()
    configure("chore", settings.log_level)
    failpoints.configure("chore")
    sys.exit(asyncio.run(run(settings, sys.argv[1])))


if __name__ == "__main__":
    main()
