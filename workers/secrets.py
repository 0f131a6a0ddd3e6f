"""Opens a project's secrets for the process that is about to use them."""

from collections.abc import Iterable

from domain.errors import SecretUnavailable
from infra.settings import Settings
from infra.vault import Vault, secret_context
from stores.system import secrets as store
from stores.unit_of_work import Database


async def opened(
    settings: Settings, database: Database, project_id: str, names: Iterable[str]
) -> dict[str, str]:
    """Values by name. Raises SecretUnavailable for one that is gone or cannot be opened."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    vault = Vault.of(settings)
    async with database.begin() as connection:
        sealed = await store.sealed(connection, project_id, wanted)
    values = {}
    for name in wanted:
        if name not in sealed:
            raise SecretUnavailable(f"the project has no secret {name!r} any more")
        try:
            values[name] = vault.open(sealed[name], secret_context(project_id, name))
        except SecretUnavailable as error:
            raise SecretUnavailable(f"secret {name!r}: {error}; write it again") from error
    return values
