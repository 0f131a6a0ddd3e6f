"""All tables. Postgres is the truth; every fence of `protocol.md` section 1 is a column here.

Times are timestamptz written from database time (`now()`), ids are prefixed text. Payloads (tokens,
weights, packages) are never columns: rows hold object-store paths and shas.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from stores.rollout_columns import (
    fate_column,
    indexes_of_groups,
    indexes_of_rollouts,
    ledger_columns,
)
from stores.schema import created as _created
from stores.schema import metadata as metadata
from stores.tables_audit import audit_event as audit_event
from stores.tables_bill import bill_line as bill_line
from stores.tables_bill import host_interval as host_interval
from stores.tables_bill import rollout_hop as rollout_hop
from stores.tables_bill import sandbox_interval as sandbox_interval
from stores.tables_evaluation import environment_column
from stores.tables_evaluation import evaluation as evaluation
from stores.tables_output import environment_output as environment_output
from stores.tables_sandbox import node_door as node_door
from stores.tables_sandbox import sandbox as sandbox
from stores.tables_schedule import job_schedule as job_schedule
from stores.tables_schedule import job_schedule_group as job_schedule_group
from stores.tables_webhook import webhook as webhook
from stores.tables_webhook import webhook_delivery as webhook_delivery

organization = Table(
    "organization",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    _created(),
)

project = Table(
    "project",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("name", Text, nullable=False),
    _created(),
    UniqueConstraint("organization_id", "name"),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    # Null organization: the bootstrap admin key of the installation.
    Column("organization_id", Text, ForeignKey("organization.id")),
    Column("project_id", Text, ForeignKey("project.id")),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("secret_hash", Text, nullable=False, unique=True),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
    _created(),
    CheckConstraint("role in ('admin','owner','developer','viewer')", name="role"),
)

idempotency = Table(
    "idempotency",
    metadata,
    # The tenant scope is the caller's key id: two tenants never share an idempotency key.
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_sha", Text, nullable=False),
    Column("status", Integer),
    Column("response", JSONB),
    _created(),
    PrimaryKeyConstraint("scope", "key"),
)

environment = Table(
    "environment",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("latest_version", Integer, nullable=False, server_default="0"),
    _created(),
    # Its versions stay for the jobs that use them; its name is free again.
    Column("deleted_at", DateTime(timezone=True)),
    Index(
        "uq_environment_live",
        "project_id",
        "name",
        unique=True,
        postgresql_where=text("deleted_at is null"),
    ),
)

environment_version = Table(
    "environment_version",
    metadata,
    Column("id", Text, primary_key=True),
    Column("environment_id", Text, ForeignKey("environment.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("content_sha", Text, nullable=False),
    Column("package_uri", Text, nullable=False),
    Column("package_sha", Text, nullable=False),
    Column("manifest", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("findings", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    # Number of tasks by split, filled by validation.
    Column("splits", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # {key, packages: {name: version}, bytes}, filled by the build of requirements.txt.
    Column("dependencies", JSONB),
    # Never chosen as the newest; a job may name it.
    Column("is_draft", Boolean, nullable=False, server_default=text("false")),
    # Refused for new jobs. The state beside it comes back with a publish.
    Column("yanked_at", DateTime(timezone=True)),
    Column("yank_reason", Text),
    _created(),
    UniqueConstraint("environment_id", "version"),
    UniqueConstraint("environment_id", "content_sha"),
)

job = Table(
    "job",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    # Normalised spec with every `auto` resolved; the submitted text stays beside it.
    Column("spec", JSONB, nullable=False),
    Column("submitted_spec", JSONB, nullable=False),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("environment_version_id", Text, ForeignKey("environment_version.id")),
    # Task lists that the job uses, as JSON lines: {list: {uri, sha, count}}; `domain/task_lists.py`.
    Column("tasks", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("generation", BigInteger, nullable=False, server_default="1"),
    Column("observed_generation", BigInteger, nullable=False, server_default="0"),
    Column("desired", Text, nullable=False, server_default="run"),
    # Generation of the last wish (run, pause, cancel); higher ones only changed limits of the spec.
    Column("desired_generation", BigInteger, nullable=False, server_default="1"),
    # Attempt that the user wants to run; the leader runs it when it differs from the running one.
    Column("attempt_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("queue_reason", Text),
    Column("queue_position", Integer),
    Column("failure", JSONB),
    Column("event_seq", BigInteger, nullable=False, server_default="0"),
    # Last scheduler view for people: open groups, assigned, staleness, blocked reason, tokens/s.
    Column("progress", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _created(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    # Deleted by its user: it is shown nowhere, its rows stay for bills. `cleaned_at`: objects are gone.
    Column("deleted_at", DateTime(timezone=True)),
    Column("cleaned_at", DateTime(timezone=True)),
    Index(None, "project_id", "id"),
    Index(
        "ix_job_to_clean",
        "id",
        postgresql_where=text("deleted_at is not null and cleaned_at is null"),
    ),
    Index("ix_job_active", "state", postgresql_where=text("ended_at is null")),
)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("number", Integer, nullable=False),
    # Checkpoint that it starts from; null: the base model.
    Column("from_checkpoint_id", Text),
    Column("base_step", Integer, nullable=False, server_default="0"),
    Column("next_ordinal", BigInteger, nullable=False, server_default="0"),
    Column("unconsumed", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    _created(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    # When its lines were written to `bill_line`; until then its bill is computed.
    Column("billed_at", DateTime(timezone=True)),
    UniqueConstraint("job_id", "number"),
    Index(
        "ix_attempt_to_bill",
        "id",
        postgresql_where=text("ended_at is not null and billed_at is null"),
    ),
)

job_event = Table(
    "job_event",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    # Taken under the job's row lock, so that a late commit never hides behind a read cursor.
    Column("seq", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    _created(),
    PrimaryKeyConstraint("job_id", "seq"),
)

metric = Table(
    "metric",
    metadata,
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Double, nullable=False),
    _created(),
    PrimaryKeyConstraint("attempt_id", "step", "name"),
    # One series of a long job, without reading all others.
    Index("ix_metric_by_name", "attempt_id", "name", "step"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("backend_pid", Integer, nullable=False),
    Column("heartbeat_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("id = 1", name="single"),
    # What fences is part of a key: who changes it waits for fenced transactions, a heartbeat does not.
    UniqueConstraint("id", "term"),
)

host_lease = Table(
    "host_lease",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("attempt_id", Text),
    Column("job_id", Text),
    Column("desired", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default="1"),
    Column("owner", Text),
    Column("key_sha", LargeBinary),
    Column("lease_until", DateTime(timezone=True)),
    # Keepers started for this row, over all epochs; bounded, so that poison never loops for ever.
    Column("starts", Integer, nullable=False, server_default="0"),
    Column("last_cause", Text),
    Column("dispatched_at", DateTime(timezone=True)),
    _created(),
    CheckConstraint("desired in ('up','down')", name="desired"),
    # As in `leadership`: a renewal never waits for the transactions of its host.
    UniqueConstraint("id", "epoch"),
    Index(None, "attempt_id"),
)

rollout_group = Table(
    "rollout_group",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("organization_id", Text, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("environment_version_id", Text, nullable=False),
    environment_column(),
    # Version at creation; for evaluation the step that is evaluated.
    Column("policy_version", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("open", Integer, nullable=False),
    Column("closed_at", DateTime(timezone=True)),
    Column("grade_epoch", Integer, nullable=False, server_default="0"),
    Column("graded_at", DateTime(timezone=True)),
    Column("usable", Integer),
    Column("zero_variance", Boolean),
    Column("oldest_version", Integer),
    Column("mean_reward", Double),
    Column("payload_uri", Text),
    Column("payload_sha", Text),
    Column("disposition", Text, nullable=False, server_default="pending"),
    fate_column(),
    Column("cause", Text),
    _created(),
    UniqueConstraint("attempt_id", "ordinal"),
    Index("ix_group_to_grade", "attempt_id", postgresql_where=text("graded_at is null")),
    *indexes_of_groups(),
    CheckConstraint("open >= 0 and open <= size", name="open"),
)

rollout = Table(
    "rollout",
    metadata,
    Column("id", Text, primary_key=True),
    Column("group_id", Text, ForeignKey("rollout_group.id"), nullable=False),
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("organization_id", Text, nullable=False),
    Column("index", Integer, nullable=False),
    Column("try", Integer, nullable=False, server_default="1"),
    Column("hop", Integer, nullable=False, server_default="0"),
    Column("host_id", Text),
    Column("closed_at", DateTime(timezone=True)),
    Column("end", Text),
    Column("verdict", Text),
    Column("reward", Double),
    Column("unscorable_reason", Text),
    Column("advantage", Double),
    Column("disposition", Text, nullable=False, server_default="pending"),
    Column("cause", Text),
    Column("trajectory_uri", Text),
    Column("trajectory_sha", Text),
    Column("turns", Integer, nullable=False, server_default="0"),
    Column("tokens", Integer, nullable=False, server_default="0"),
    Column("sampled_tokens", Integer, nullable=False, server_default="0"),
    Column("oldest_version", Integer),
    Column("newest_version", Integer),
    Column("components", JSONB),
    *ledger_columns(),
    _created(),
    UniqueConstraint("group_id", "index"),
    *indexes_of_rollouts(),
    Index("ix_rollout_open", "attempt_id", postgresql_where=text("closed_at is null")),
    CheckConstraint("verdict in ('scored','unscorable')", name="verdict"),
    CheckConstraint("(verdict = 'scored') = (reward is not null)", name="reward"),
)

rollout_try = Table(
    "rollout_try",
    metadata,
    Column("rollout_id", Text, ForeignKey("rollout.id"), nullable=False),
    Column("try", Integer, nullable=False),
    Column("end", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("counts", Boolean, nullable=False),
    Column("hop", Integer, nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("rollout_id", "try"),
)

batch_member = Table(
    "batch_member",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("group_id", Text, ForeignKey("rollout_group.id"), nullable=False),
    Column("staleness", Integer, nullable=False),
    _created(),
    # A group trains once in an attempt, and a position holds one group.
    UniqueConstraint("attempt_id", "group_id"),
    Index(None, "job_id", "step"),
    PrimaryKeyConstraint("attempt_id", "step", "position"),
)

train_step = Table(
    "train_step",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    # Step 0 is the policy that the attempt starts from.
    Column("step", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    # In the order in which backward ran: recovery re-applies exactly this order.
    Column("group_ids", ARRAY(Text), nullable=False),
    Column("payloads", JSONB, nullable=False),
    Column("learning_rate", Double, nullable=False),
    Column("weights_sha", Text, nullable=False),
    Column("weights_uri", Text, nullable=False),
    Column("probe_uri", Text, nullable=False),
    Column("diverged", Boolean, nullable=False, server_default=text("false")),
    _created(),
    PrimaryKeyConstraint("attempt_id", "step"),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("organization_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("manifest_uri", Text),
    Column("weights_sha", Text, nullable=False),
    Column("files", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("next_ordinal", BigInteger, nullable=False),
    Column("unconsumed", ARRAY(BigInteger), nullable=False),
    # A kept one never expires by itself. `expires_at` is the creation and `ttl_days`.
    Column("keep", Boolean, nullable=False, server_default=text("false")),
    Column("ttl_days", Integer),
    Column("expires_at", DateTime(timezone=True)),
    # {format, name, uri, sha, size} of its bundle, once it was exported.
    Column("export", JSONB),
    # When a chore had deleted the files of an expired one.
    Column("cleaned_at", DateTime(timezone=True)),
    _created(),
    CheckConstraint("state in ('writing','ready','expired')", name="state"),
    Index(None, "job_id", "id"),
    Index(
        "ix_checkpoint_due",
        "expires_at",
        postgresql_where=text("state = 'ready' and not keep and expires_at is not null"),
    ),
    Index(
        "ix_checkpoint_to_clean",
        "job_id",
        postgresql_where=text("state = 'expired' and cleaned_at is null"),
    ),
)

operation = Table(
    "operation",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("request", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("result", JSONB),
    Column("error", JSONB),
    # Starts of its chore, counted here and not by the broker: a poisonous one ends.
    Column("starts", Integer, nullable=False, server_default="0"),
    Column("dispatched_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    _created(),
    CheckConstraint("state in ('pending','running','done','failed')", name="state"),
    Index("ix_operation_open", "state", postgresql_where=text("ended_at is null")),
)
