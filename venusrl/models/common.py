"""Shared wire records: pages, problems, findings."""

from typing import Generic, TypeVar

from pydantic import Field

from venusrl.models._base import Answer

T = TypeVar("T")


class Page(Answer, Generic[T]):
    """One page of a list; `next` goes into `after` of the next request."""

    data: list[T]
    has_more: bool
    next: str | None = None


class Finding(Answer):
    """One thing wrong, or worth knowing: JSON pointer, closed code, message, hint, severity."""

    pointer: str
    code: str
    message: str
    hint: str = ""
    severity: str = "error"


class ProblemDocument(Answer):
    """RFC 9457 problem."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    instance: str = ""
    code: str
    errors: list[Finding] = Field(default_factory=list)
    request_id: str = ""
