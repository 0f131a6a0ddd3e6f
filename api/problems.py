"""Errors as RFC 9457 problems with a closed set of codes; nothing leaves the gateway in another form."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.audit.call import name_code
from domain.errors import ObjectNotWritten, StoreUnavailable
from infra.logging import get_logger

MEDIA_TYPE: Final = "application/problem+json"

VALUE_ERROR: Final = "Value error, "
"""What pydantic puts before the message of a validator of ours."""

NEAR_MAX: Final = 3
"""Near names shown in a hint."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a request: JSON pointer, closed code, message, hint."""

    pointer: str
    code: str
    message: str
    hint: str = ""
    severity: str = "error"

    def as_json(self) -> dict[str, str]:
        """Wire form."""
        return {
            "pointer": self.pointer,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "severity": self.severity,
        }


CODES: Final = frozenset(
    {
        "bad_request",
        "busy",
        "checkpoint_not_ready",
        "conflict",
        "forbidden",
        "http_error",
        "idempotency_conflict",
        "in_use",
        "internal",
        "invalid",
        "job_active",
        "job_cancelling",
        "job_ended",
        "job_never_started",
        "limit_reached",
        "method_not_allowed",
        "name_taken",
        "no_checkpoint",
        "no_trajectory",
        "not_exported",
        "not_found",
        "not_supported",
        "nothing_left",
        "nothing_recorded",
        "payload_unreadable",
        "precondition_failed",
        "range_not_satisfiable",
        "rollout_open",
        "sandbox_ended",
        "sandbox_not_running",
        "sandbox_paused",
        "too_large",
        "unauthorized",
        "unavailable",
        "unsupported_media_type",
    }
)
"""Every code that a problem may have; clients branch on them, so that one is only ever added."""


@dataclass
class Problem(Exception):
    """An expected refusal with its status and code, one of CODES."""

    status: int
    code: str
    detail: str
    errors: Sequence[Finding] = field(default_factory=tuple)
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        """Hold the set of codes closed."""
        assert self.code in CODES, f"{self.code} is no problem code"


def not_found(kind: str, name: str, known: Sequence[str] = ()) -> Problem:
    """404, also for another tenant's object; near names only among the caller's own."""
    near = near_names(name, known)
    return Problem(404, "not_found", f"There is no {kind} {name!r} here.{near}")


def conflict(detail: str, code: str = "conflict") -> Problem:
    """409: the object is in a state that forbids the request."""
    return Problem(409, code, detail)


def forbidden(detail: str) -> Problem:
    """403: the key's role or scope does not allow the verb."""
    return Problem(403, "forbidden", detail)


def invalid(errors: Sequence[Finding], detail: str = "The request has errors.") -> Problem:
    """422 with a pointer per finding."""
    return Problem(422, "invalid", detail, tuple(errors))


def too_large(what: str, limit: int) -> Problem:
    """413 with the limit."""
    return Problem(413, "too_large", f"{what} is larger than {limit} bytes.")


def near_names(name: str, known: Sequence[str]) -> str:
    """`Near: a, b.` or nothing."""
    near = difflib.get_close_matches(name, known, n=NEAR_MAX, cutoff=0.4)
    return f" Near: {', '.join(near)}." if near else ""


def problem_response(request: Request, problem: Problem) -> JSONResponse:
    """The problem document."""
    name_code(problem.code)
    document: dict[str, Any] = {
        "type": f"https://venusrl.dev/problems/{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "instance": request.url.path,
        "code": problem.code,
        "errors": [one.as_json() for one in problem.errors],
        "request_id": getattr(request.state, "request_id", ""),
    }
    headers = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(document, problem.status, headers=headers, media_type=MEDIA_TYPE)


def escaped(part: str) -> str:
    """One part of a JSON pointer (RFC 6901)."""
    return part.replace("~", "~0").replace("/", "~1")


def findings_of(errors: Sequence[Any], prefix: str = "") -> list[Finding]:
    """Findings of pydantic errors; pointers are relative to the body."""
    found = []
    for error in errors:
        where = [str(part) for part in error["loc"]]
        if where[:1] == ["body"]:
            del where[0]
        pointer = prefix + "".join("/" + escaped(part) for part in where)
        code = str(error["type"])
        if code == "json_invalid":
            pointer = prefix
        hint = ""
        if code == "extra_forbidden":
            hint = "This field is unknown, or belongs to a later version of the spec; remove it."
        found.append(Finding(pointer, code, str(error["msg"]).removeprefix(VALUE_ERROR), hint))
    return found


_CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}


def install(app: FastAPI) -> None:
    """Handlers for everything that a route may raise."""

    @app.exception_handler(Problem)
    async def _problem(request: Request, error: Problem) -> JSONResponse:
        return problem_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_response(request, invalid(findings_of(error.errors())))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "http_error")
        return problem_response(request, Problem(error.status_code, code, str(error.detail)))

    @app.exception_handler(StoreUnavailable)
    async def _away(request: Request, error: StoreUnavailable) -> JSONResponse:
        get_logger().warning("store.away", cause=str(error))
        detail = "The database is away; nothing was changed or the outcome is unknown: retry."
        return problem_response(request, Problem(503, "unavailable", detail, retry_after_s=1))

    @app.exception_handler(ObjectNotWritten)
    async def _unwritten(request: Request, error: ObjectNotWritten) -> JSONResponse:
        get_logger().warning("objects.refused", cause=str(error))
        detail = "The object store did not take the upload; nothing was created: retry later."
        return problem_response(request, Problem(503, "unavailable", detail, retry_after_s=5))

    @app.exception_handler(Exception)
    async def _crash(request: Request, error: Exception) -> JSONResponse:
        get_logger().exception("request.crashed", path=request.url.path)
        detail = "The gateway failed; the request id names its log."
        return problem_response(request, Problem(500, "internal", detail))
