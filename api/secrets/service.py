"""Verbs of secrets. The gateway seals values and never opens one."""

from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Problem, conflict, not_found
from domain.errors import SecretUnavailable
from infra.logging import get_logger, striking
from infra.vault import Vault, secret_context
from stores import secrets as store
from stores.environments import Owner
from stores.secrets import NewSecret
from stores.unit_of_work import AsyncConnection
from venusrl.env.redaction import Redactor
from venusrl.models.secrets import Secret, SecretPut

SECRETS_MAX: Final = 200
"""Of one project; validation reads all names."""


def secret_of(row: Any) -> Secret:
    """Wire form of a secret's row."""
    return Secret(id=row.id, name=row.name, created_at=row.created_at, updated_at=row.updated_at)


async def put(gateway: Gateway, caller: ProjectCaller, name: str, body: SecretPut) -> Secret:
    """Seal and store. Raises 503 without a usable key, 409 when the project has too many."""
    with striking(Redactor([body.value]).text):
        try:
            vault = Vault.of(gateway.settings)
            sealed = vault.seal(body.value, secret_context(caller.project_id, name))
        except SecretUnavailable as error:
            get_logger().error("secret.not_sealed", cause=str(error))
            detail = f"This installation cannot store secrets: {error}. `venus doctor` says more."
            raise Problem(503, "unavailable", detail) from error
        owner = Owner(caller.organization_id, caller.project_id)
        async with gateway.database.begin() as connection:
            if await store.count(connection, caller.project_id, name) >= SECRETS_MAX:
                raise conflict(f"A project holds at most {SECRETS_MAX} secrets; delete one.")
            new = NewSecret(gateway.ids.new("sec"), name, sealed)
            return secret_of(await store.put(connection, owner, new))


async def delete(connection: AsyncConnection, caller: ProjectCaller, name: str) -> None:
    """Delete a secret that no open job names. Raises 404, 409."""
    known = await store.names(connection, caller.project_id)
    if name not in known:
        raise not_found("secret", name, known)
    job_id = await store.job_using(connection, caller.project_id, name)
    if job_id is not None:
        raise conflict(f"The job {job_id} has not ended and names this secret.", "in_use")
    await store.delete(connection, caller.project_id, name)
