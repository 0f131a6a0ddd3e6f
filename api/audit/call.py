"""The call that is being served, as its audit event will tell of it.

The edge opens it for every method that may change something, authentication names the actor, and the
database of the gateway writes it down (`database.py`). No route has anything to do with it.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from stores.audit import AuditEvent

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

CHANGES_NOTHING: Final = frozenset({"/v1/jobs/validate"})
"""Routes that only answer, though their method is POST: what they lock is no change."""

VERBS: Final = {"PATCH": "update", "PUT": "put", "DELETE": "delete"}

NAME_CHARS_MAX: Final = 200
"""Of what an address names; longer names are of no object."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Whose key called."""

    key_id: str
    organization_id: str | None
    project_id: str | None


@dataclass(slots=True)
class Call:
    """One call; `actor` is None until its key is proven."""

    scope: MutableMapping[str, Any]
    request_id: str
    actor: Actor | None = None
    created: str | None = None
    code: str | None = None
    is_recorded: bool = False

    @property
    def is_due(self) -> bool:
        """Whether it may leave an event and has not yet."""
        route = getattr(self.scope.get("route"), "path", "")
        return self.actor is not None and not self.is_recorded and route not in CHANGES_NOTHING

    def event(self, id: str, outcome: str) -> AuditEvent:
        """What is written down."""
        assert self.actor is not None, "only proven callers are written down"
        names = [str(one)[:NAME_CHARS_MAX] for one in self.scope.get("path_params", {}).values()]
        client = self.scope.get("client")
        return AuditEvent(
            id=id,
            organization_id=self.actor.organization_id,
            project_id=self.actor.project_id,
            actor=self.actor.key_id,
            action=action_of(self.scope["method"], self._route()),
            target=names[0] if names else self.created,
            part="/".join(names[1:]) or None,
            created=self.created if outcome == "done" else None,
            address=str(client[0]) if client else "",
            request_id=self.request_id,
            outcome=outcome,
            code=self.code if outcome == "refused" else None,
        )

    def _route(self) -> str:
        return str(getattr(self.scope.get("route"), "path", ""))


_CURRENT: ContextVar[Call | None] = ContextVar("audited_call", default=None)


def current() -> Call | None:
    """The call that this task serves, if it may change something."""
    return _CURRENT.get()


@contextmanager
def serving(call: Call) -> Iterator[None]:
    """The block serves the call."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def name_actor(actor: Actor) -> None:
    """The caller's key is proven."""
    call = current()
    if call is not None:
        call.actor = actor


def name_created(answer: Any) -> None:
    """What a POST made, from its answer."""
    call = current()
    if call is not None and isinstance(answer, dict) and "id" in answer:
        made = str(answer["id"])
        call.created = None if made in call.scope.get("path_params", {}).values() else made


def name_code(code: str) -> None:
    """The call is refused with this problem code."""
    call = current()
    if call is not None:
        call.code = code


def action_of(method: str, route: str) -> str:
    """`POST /v1/jobs/{job_id}/pause` is `jobs.pause`, `POST /v1/jobs` is `jobs.create`.

    A POST to a plural noun creates; to anything else, its last word is the verb.
    """
    words = [part for part in route.split("/") if part and not part.startswith("{")]
    words = words[1:] if words[:1] == ["v1"] else words
    if method in VERBS:
        return ".".join([*words, VERBS[method]])
    if not words or words[-1].endswith("s"):
        return ".".join([*words, "create"])
    return ".".join(words)
