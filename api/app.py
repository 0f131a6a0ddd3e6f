"""The application: routers, problems, request ids, body limits."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request, Response

from api import problems
from api.checkpoints.routes import router as checkpoints_router
from api.environments.routes import router as environments_router
from api.gateway import Gateway
from api.jobs.routes import router as jobs_router
from api.problems import problem_response, too_large
from api.rollouts.routes import router as rollouts_router
from api.system.routes import router as system_router
from api.tenancy.routes import router as tenancy_router
from infra.ids import IdSource
from infra.settings import Settings
from stores.blobs import Blobs
from stores.unit_of_work import Database
from venusrl.models.job_spec import JobSpec

UPLOAD_SUFFIX: Final = "/versions"
"""Only package uploads may be larger than an ordinary request; they check their own limit."""

Next = Callable[[Request], Awaitable[Response]]


def create_app(settings: Settings | None = None) -> FastAPI:
    """The gateway; without settings only its document can be read."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        assert settings is not None, "the gateway needs settings to serve"
        database = Database(settings.database_url, settings.database_connections)
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
    problems.install(app)
    ids = IdSource()

    @app.middleware("http")
    async def _edge(request: Request, call_next: Next) -> Response:
        given = request.headers.get("x-request-id", "")
        is_usable = 0 < len(given) <= 100 and given.isascii() and given.isprintable()
        request.state.request_id = given if is_usable else ids.new("req")
        limit = settings.limits.request_bytes if settings is not None else 0
        declared = request.headers.get("content-length", "0")
        is_upload = request.url.path.endswith(UPLOAD_SUFFIX)
        if declared.isdigit() and int(declared) > limit > 0 and not is_upload:
            response: Response = problem_response(request, too_large("The request", limit))
        else:
            response = await call_next(request)
        response.headers["X-Request-Id"] = request.state.request_id
        return response

    for router in (
        system_router,
        tenancy_router,
        environments_router,
        jobs_router,
        rollouts_router,
        checkpoints_router,
    ):
        app.include_router(router)
    _publish_spec(app)
    return app


def _publish_spec(app: FastAPI) -> None:
    """Add the job spec's schema to the document: bodies are validated by our own code, with hints."""
    original = app.openapi

    def openapi() -> dict[str, object]:
        document = original()
        schemas = document["components"]["schemas"]
        if "JobSpec" not in schemas:
            schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas["JobSpec"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it
