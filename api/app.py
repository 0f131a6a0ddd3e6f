"""The application: routers, problems, request ids, body limits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import document, problems
from api.audit.database import AuditedDatabase
from api.audit.routes import router as audit_router
from api.billing.routes import router as billing_router
from api.checkpoints.routes import router as checkpoints_router
from api.datasets.routes import router as datasets_router
from api.edge import Edge
from api.environments.routes import router as environments_router
from api.gateway import Gateway
from api.jobs.routes import router as jobs_router
from api.jobs.schedule import router as schedule_router
from api.logs.routes import router as logs_router
from api.models.routes import router as models_router
from api.operations.routes import router as operations_router
from api.plans.routes import router as plans_router
from api.rollouts.routes import router as rollouts_router
from api.sandboxes.routes import router as sandboxes_router
from api.secrets.routes import router as secrets_router
from api.system.routes import router as system_router
from api.tenancy.routes import router as tenancy_router
from api.usage.routes import router as usage_router
from api.webhooks.routes import router as webhooks_router
from infra.ids import IdSource
from infra.settings import Intervals, Settings
from stores.blobs import Blobs


def create_app(settings: Settings | None = None) -> FastAPI:
    """The gateway; without settings only its document can be read.

    It serves the settings in `app.state.settings` at its start, so that it can be started again for
    another installation with the same limits.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        settings: Settings | None = app.state.settings
        assert settings is not None, "the gateway needs settings to serve"
        database = AuditedDatabase(settings.database_url, settings.database_connections, IdSource())
        blobs = Blobs(settings.object_store_url)
        app.state.gateway = Gateway(settings, database, blobs, IdSource())
        yield
        await database.close()

    app = FastAPI(
        title="VenusRL",
        version="1",
        summary="Reinforcement learning as a service",
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    app.state.settings = settings
    problems.install(app)
    body_limit = None if settings is None else settings.limits.request_bytes
    send_s = (Intervals() if settings is None else settings.intervals).client_send_s
    app.add_middleware(Edge, ids=IdSource(), body_limit=body_limit, send_s=send_s)
    for router in (
        system_router,
        tenancy_router,
        environments_router,
        jobs_router,
        schedule_router,
        rollouts_router,
        logs_router,
        billing_router,
        checkpoints_router,
        operations_router,
        plans_router,
        models_router,
        datasets_router,
        secrets_router,
        sandboxes_router,
        webhooks_router,
        audit_router,
        usage_router,
    ):
        app.include_router(router)
    document.publish(app)
    return app
