"""Starts environment processes with what their job gives them: secrets by variable, and judges.

Values are opened here, go over the process's pipe and into the judges' requests, and nowhere else;
while an attempt has processes here, the log of this agent strikes them out.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from domain.errors import SecretUnavailable, StoreUnavailable
from domain.ids import AttemptId
from infra.clock import Clock
from infra.logging import striking
from infra.settings import Settings
from stores.system import secrets as store
from stores.system.secrets import JobGrants
from stores.unit_of_work import Database
from venusrl.env.host.connection import LogSink
from venusrl.env.host.ports import EnvironmentCrashed, EnvironmentProcess
from venusrl.env.host.process import discard_log, start_environment
from venusrl.env.messages import Json
from venusrl.env.redaction import Redactor
from workers.fleet.environment_pool import EnvironmentKey
from workers.fleet.judges import HttpJudge, JobJudges
from workers.fleet.packages import Package
from workers.secrets import opened

STORE_TRIES: Final = 30
"""Reads while Postgres is away, a second apart, before the start fails and its try with it."""

PAUSE_S: Final = 1.0
"""Between two of them."""


@dataclass(slots=True)
class _Attempt:
    """What an attempt holds of this starter."""

    grants: JobGrants
    judges: JobJudges
    values: frozenset[str] = field(default=frozenset(), repr=False)
    struck: ExitStack = field(default_factory=ExitStack)


@dataclass(slots=True)
class EnvironmentStarter:
    """Starts the processes of an `EnvironmentPool`."""

    settings: Settings
    database: Database
    clock: Clock
    sink: Callable[[AttemptId], LogSink] = lambda _: discard_log
    """Where what an attempt's processes print goes."""
    _attempts: dict[AttemptId, _Attempt] = field(default_factory=dict)

    async def start(
        self, key: EnvironmentKey, package: Package, config: Mapping[str, Json]
    ) -> EnvironmentProcess:
        """One process in its own sandbox. Raises EnvironmentFault."""
        try:
            attempt, values = await self._patiently(key.attempt_id)
        except (SecretUnavailable, StoreUnavailable) as error:
            raise EnvironmentCrashed("secret_unavailable", str(error)) from error
        secrets = {variable: values[name] for variable, name in attempt.grants.secrets.items()}
        return await start_environment(
            package.folder,
            package.manifest,
            config,
            self.sink(key.attempt_id),
            judges=attempt.judges,
            dependencies=package.dependencies,
            secrets=secrets,
        )

    async def release(self, attempt_id: AttemptId) -> None:
        """Forget an attempt's values and close its connections."""
        attempt = self._attempts.pop(attempt_id, None)
        if attempt is not None:
            attempt.struck.close()
            await attempt.judges.close()

    async def close(self) -> None:
        """Forget all of them."""
        for attempt_id in list(self._attempts):
            await self.release(attempt_id)

    async def _patiently(self, attempt_id: AttemptId) -> tuple[_Attempt, Mapping[str, str]]:
        for remaining in reversed(range(STORE_TRIES)):
            try:
                return await self._granted(attempt_id)
            except StoreUnavailable:
                if not remaining:
                    raise
                await self.clock.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def _granted(self, attempt_id: AttemptId) -> tuple[_Attempt, Mapping[str, str]]:
        """The attempt and its secrets' values by name, read anew at each start."""
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            async with self.database.begin() as connection:
                grants = await store.grants_of_attempt(connection, attempt_id)
            made = self._made(grants or JobGrants("", {}, {}))
            attempt = self._attempts.setdefault(attempt_id, made)
        grants = attempt.grants
        keys = {one["secret"] for one in grants.judges.values() if one["secret"] is not None}
        names = {*grants.secrets.values(), *keys}
        values = await opened(self.settings, self.database, grants.project_id, names)
        for name, judge in attempt.judges.judges.items():
            secret = grants.judges[name]["secret"]
            judge.key = None if secret is None else values[secret]
        if fresh := frozenset(values.values()) - attempt.values:
            attempt.values |= fresh
            attempt.struck.enter_context(striking(Redactor(fresh).text))
        return attempt, values

    def _made(self, grants: JobGrants) -> _Attempt:
        judges = {
            name: HttpJudge(
                url=str(one["url"]),
                model=str(one["model"]),
                at_once=int(one["max_concurrency"]),
                allowed_hosts=self.settings.judge_hosts,
                clock=self.clock,
            )
            for name, one in grants.judges.items()
        }
        return _Attempt(grants, JobJudges(judges))
