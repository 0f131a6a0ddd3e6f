"""All nouns of the API over one transport: what both clients offer."""

from typing import Any

from venusrl._accounts import AsyncAudit, AsyncUsage
from venusrl._checkpoints import AsyncCheckpoints, AsyncOperations
from venusrl._datasets import AsyncDatasets
from venusrl._environments import AsyncEnvironments
from venusrl._jobs import AsyncJobs
from venusrl._models import AsyncModels
from venusrl._plans import AsyncPlans
from venusrl._rollouts import AsyncGroups, AsyncRollouts
from venusrl._sandboxes import AsyncSandboxes
from venusrl._secrets import AsyncSecrets
from venusrl._tenancy import AsyncKeys, AsyncOrganizations, AsyncProjects
from venusrl._transport import Request, Transport
from venusrl._webhooks import AsyncWebhooks


class Nouns:
    """One key's view of the platform."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.organizations = AsyncOrganizations(transport)
        self.projects = AsyncProjects(transport)
        self.keys = AsyncKeys(transport)
        self.environments = AsyncEnvironments(transport)
        self.datasets = AsyncDatasets(transport)
        self.models = AsyncModels(transport)
        self.secrets = AsyncSecrets(transport)
        self.jobs = AsyncJobs(transport)
        self.plans = AsyncPlans(transport)
        self.groups = AsyncGroups(transport)
        self.rollouts = AsyncRollouts(transport)
        self.operations = AsyncOperations(transport)
        self.checkpoints = AsyncCheckpoints(transport, self.operations)
        self.sandboxes = AsyncSandboxes(transport)
        self.webhooks = AsyncWebhooks(transport)
        self.audit = AsyncAudit(transport)
        self.usage = AsyncUsage(transport)

    @property
    def base_url(self) -> str:
        """Address of the API."""
        return self._transport.base_url

    async def status(self) -> dict[str, Any]:
        """Whether a scheduler leads, hosts by kind, jobs by state."""
        answer = (await self._transport.send(Request("GET", "/v1/status"))).json()
        assert isinstance(answer, dict)
        return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()
