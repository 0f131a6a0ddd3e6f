"""The nouns of the blocking client: each verb by name, its code in the noun's own module."""

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
from venusrl._surface import Surface, blocking, each
from venusrl._tenancy import AsyncKeys, AsyncOrganizations, AsyncProjects
from venusrl._webhooks import AsyncWebhooks


class Organizations(Surface[AsyncOrganizations]):
    """`client.organizations`; creating one needs the installation's admin key."""

    create = blocking(AsyncOrganizations.create)
    list = each(AsyncOrganizations.list)


class Projects(Surface[AsyncProjects]):
    """`client.projects`."""

    create = blocking(AsyncProjects.create)
    list = each(AsyncProjects.list)


class Keys(Surface[AsyncKeys]):
    """`client.keys`."""

    create = blocking(AsyncKeys.create)
    rotate = blocking(AsyncKeys.rotate)
    get = blocking(AsyncKeys.get)
    list = each(AsyncKeys.list)
    revoke = blocking(AsyncKeys.revoke)


class Environments(Surface[AsyncEnvironments]):
    """`client.environments`."""

    push = blocking(AsyncEnvironments.push)
    upload = blocking(AsyncEnvironments.upload)
    create = blocking(AsyncEnvironments.create)
    wait = blocking(AsyncEnvironments.wait)
    list = each(AsyncEnvironments.list)
    get = blocking(AsyncEnvironments.get)
    versions = each(AsyncEnvironments.versions)
    version = blocking(AsyncEnvironments.version)
    yank = blocking(AsyncEnvironments.yank)
    publish = blocking(AsyncEnvironments.publish)
    validate = blocking(AsyncEnvironments.validate)
    test = blocking(AsyncEnvironments.test)
    delete = blocking(AsyncEnvironments.delete)


class Models(Surface[AsyncModels]):
    """`client.models`: what a job can start from."""

    list = each(AsyncModels.list)
    get = blocking(AsyncModels.get)
    upload = blocking(AsyncModels.upload)
    from_checkpoint = blocking(AsyncModels.from_checkpoint)
    from_hub = blocking(AsyncModels.from_hub)
    wait = blocking(AsyncModels.wait)
    delete = blocking(AsyncModels.delete)


class Secrets(Surface[AsyncSecrets]):
    """`client.secrets`: what jobs name under `secrets` and `judges`."""

    set = blocking(AsyncSecrets.set)
    list = each(AsyncSecrets.list)
    delete = blocking(AsyncSecrets.delete)


class Datasets(Surface[AsyncDatasets]):
    """`client.datasets`."""

    create = blocking(AsyncDatasets.create)
    push = blocking(AsyncDatasets.push)
    wait = blocking(AsyncDatasets.wait)
    list = each(AsyncDatasets.list)
    get = blocking(AsyncDatasets.get)
    versions = each(AsyncDatasets.versions)
    version = blocking(AsyncDatasets.version)
    preview = blocking(AsyncDatasets.preview)
    delete = blocking(AsyncDatasets.delete)


class Jobs(Surface[AsyncJobs]):
    """`client.jobs`."""

    validate = blocking(AsyncJobs.validate)
    create = blocking(AsyncJobs.create)
    list = each(AsyncJobs.list)
    get = blocking(AsyncJobs.get)
    update = blocking(AsyncJobs.update)
    delete = blocking(AsyncJobs.delete)
    etag = blocking(AsyncJobs.etag)
    pause = blocking(AsyncJobs.pause)
    resume = blocking(AsyncJobs.resume)
    cancel = blocking(AsyncJobs.cancel)
    restart = blocking(AsyncJobs.restart)
    branch = blocking(AsyncJobs.branch)
    events = each(AsyncJobs.events)
    logs = each(AsyncJobs.logs)
    follow = each(AsyncJobs.follow)
    wait = blocking(AsyncJobs.wait)
    wait_for = blocking(AsyncJobs.wait_for)
    metrics = blocking(AsyncJobs.metrics)
    evaluations = blocking(AsyncJobs.evaluations)
    progress = blocking(AsyncJobs.progress)
    schedule = blocking(AsyncJobs.schedule)
    schedule_of = blocking(AsyncJobs.schedule_of)
    profile = blocking(AsyncJobs.profile)
    bill = blocking(AsyncJobs.bill)
    ledger = blocking(AsyncJobs.ledger)


class Groups(Surface[AsyncGroups]):
    """`client.groups`."""

    list = each(AsyncGroups.list)
    get = blocking(AsyncGroups.get)


class Plans(Surface[AsyncPlans]):
    """`client.plans`."""

    create = blocking(AsyncPlans.create)
    whatif = blocking(AsyncPlans.whatif)
    get = blocking(AsyncPlans.get)
    wait = blocking(AsyncPlans.wait)


class Rollouts(Surface[AsyncRollouts]):
    """`client.rollouts`."""

    list = each(AsyncRollouts.list)
    get = blocking(AsyncRollouts.get)
    trajectory = blocking(AsyncRollouts.trajectory)
    logs = each(AsyncRollouts.logs)
    spans = blocking(AsyncRollouts.spans)
    branch = blocking(AsyncRollouts.branch)
    branches = each(AsyncRollouts.branches)
    branch_trajectory = blocking(AsyncRollouts.branch_trajectory)
    export = blocking(AsyncRollouts.export)


class Operations(Surface[AsyncOperations]):
    """`client.operations`: asynchronous verbs."""

    get = blocking(AsyncOperations.get)
    wait = blocking(AsyncOperations.wait)


class Checkpoints(Surface[AsyncCheckpoints]):
    """`client.checkpoints`."""

    list = each(AsyncCheckpoints.list)
    get = blocking(AsyncCheckpoints.get)
    update = blocking(AsyncCheckpoints.update)
    etag = blocking(AsyncCheckpoints.etag)
    delete = blocking(AsyncCheckpoints.delete)
    export = blocking(AsyncCheckpoints.export)
    fetch_export = blocking(AsyncCheckpoints.fetch_export)
    generate = blocking(AsyncCheckpoints.generate)
    download = blocking(AsyncCheckpoints.download)


class Sandboxes(Surface[AsyncSandboxes]):
    """`client.sandboxes`: machines for commands, apart from any job."""

    create = blocking(AsyncSandboxes.create)
    create_group = blocking(AsyncSandboxes.create_group)
    list = each(AsyncSandboxes.list)
    get = blocking(AsyncSandboxes.get)
    exec = blocking(AsyncSandboxes.exec)
    read = blocking(AsyncSandboxes.read)
    write = blocking(AsyncSandboxes.write)
    pause = blocking(AsyncSandboxes.pause)
    resume = blocking(AsyncSandboxes.resume)
    set_timeout = blocking(AsyncSandboxes.set_timeout)
    kill = blocking(AsyncSandboxes.kill)
    metrics = blocking(AsyncSandboxes.metrics)
    templates = blocking(AsyncSandboxes.templates)


class Webhooks(Surface[AsyncWebhooks]):
    """`client.webhooks`."""

    create = blocking(AsyncWebhooks.create)
    list = each(AsyncWebhooks.list)
    get = blocking(AsyncWebhooks.get)
    update = blocking(AsyncWebhooks.update)
    delete = blocking(AsyncWebhooks.delete)
    rotate = blocking(AsyncWebhooks.rotate)
    test = blocking(AsyncWebhooks.test)
    deliveries = each(AsyncWebhooks.deliveries)
    delivery = blocking(AsyncWebhooks.delivery)
    redeliver = blocking(AsyncWebhooks.redeliver)


class Audit(Surface[AsyncAudit]):
    """`client.audit`; needs a key with the role admin."""

    list = each(AsyncAudit.list)


class Usage(Surface[AsyncUsage]):
    """`client.usage`."""

    list = each(AsyncUsage.list)
