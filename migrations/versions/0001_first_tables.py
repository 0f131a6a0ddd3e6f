"""first tables"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "host_lease",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("key_sha", sa.LargeBinary(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("last_cause", sa.Text(), nullable=True),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("desired in ('up','down')", name=op.f("ck_host_lease_desired")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host_lease")),
    )
    op.create_index(op.f("ix_host_lease_attempt_id"), "host_lease", ["attempt_id"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("backend_pid", sa.Integer(), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_leadership_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leadership")),
    )
    op.create_table(
        "organization",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_organization")),
    )
    op.create_table(
        "project",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_project_organization_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint(
            "organization_id", "name", name=op.f("uq_project_organization_id_name")
        ),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "role in ('admin','owner','developer','viewer')", name=op.f("ck_api_key_role")
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_api_key_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_api_key_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_api_key_secret_hash")),
    )
    op.create_table(
        "environment",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("latest_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_environment_organization_id")
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_environment_project_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_environment_project_id_name")),
    )
    op.create_table(
        "operation",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("request", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("starts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("dispatched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state in ('pending','running','done','failed')", name=op.f("ck_operation_state")
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_operation_project_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operation")),
    )
    op.create_index(
        "ix_operation_open",
        "operation",
        ["state"],
        unique=False,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.create_table(
        "environment_version",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content_sha", sa.Text(), nullable=False),
        sa.Column("package_uri", sa.Text(), nullable=False),
        sa.Column("package_sha", sa.Text(), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "findings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "splits",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environment.id"],
            name=op.f("fk_environment_version_environment_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment_version")),
        sa.UniqueConstraint(
            "environment_id",
            "content_sha",
            name=op.f("uq_environment_version_environment_id_content_sha"),
        ),
        sa.UniqueConstraint(
            "environment_id", "version", name=op.f("uq_environment_version_environment_id_version")
        ),
    )
    op.create_table(
        "job",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("submitted_spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "labels",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("environment_version_id", sa.Text(), nullable=True),
        sa.Column(
            "tasks",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("generation", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("observed_generation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("desired", sa.Text(), server_default="run", nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("queue_reason", sa.Text(), nullable=True),
        sa.Column("queue_position", sa.Integer(), nullable=True),
        sa.Column("failure", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("event_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "progress",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_version_id"],
            ["environment_version.id"],
            name=op.f("fk_job_environment_version_id"),
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_job_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_job_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index(
        "ix_job_active",
        "job",
        ["state"],
        unique=False,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.create_index(op.f("ix_job_project_id_id"), "job", ["project_id", "id"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("from_checkpoint_id", sa.Text(), nullable=True),
        sa.Column("base_step", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_ordinal", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "unconsumed",
            postgresql.ARRAY(sa.BigInteger()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_attempt_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_attempt_job_id_number")),
    )
    op.create_table(
        "job_event",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_job_event_job_id")),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_event")),
    )
    op.create_table(
        "checkpoint",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("manifest_uri", sa.Text(), nullable=True),
        sa.Column("weights_sha", sa.Text(), nullable=False),
        sa.Column(
            "files",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column("next_ordinal", sa.BigInteger(), nullable=False),
        sa.Column("unconsumed", postgresql.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state in ('writing','ready','expired')", name=op.f("ck_checkpoint_state")
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_checkpoint_attempt_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_checkpoint_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint")),
    )
    op.create_index(op.f("ix_checkpoint_job_id_id"), "checkpoint", ["job_id", "id"], unique=False)
    op.create_table(
        "evaluation",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("scored", sa.Integer(), nullable=False),
        sa.Column("unscorable", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_evaluation_attempt_id")
        ),
        sa.PrimaryKeyConstraint("attempt_id", "step", name=op.f("pk_evaluation")),
    )
    op.create_table(
        "metric",
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_metric_attempt_id")),
        sa.PrimaryKeyConstraint("attempt_id", "step", "name", name=op.f("pk_metric")),
    )
    op.create_table(
        "rollout_group",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("environment_version_id", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("open", sa.Integer(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("grade_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("graded_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("usable", sa.Integer(), nullable=True),
        sa.Column("zero_variance", sa.Boolean(), nullable=True),
        sa.Column("oldest_version", sa.Integer(), nullable=True),
        sa.Column("mean_reward", sa.Double(), nullable=True),
        sa.Column("payload_uri", sa.Text(), nullable=True),
        sa.Column("payload_sha", sa.Text(), nullable=True),
        sa.Column("disposition", sa.Text(), server_default="pending", nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("open >= 0 and open <= size", name=op.f("ck_rollout_group_open")),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_rollout_group_attempt_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_rollout_group_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout_group")),
        sa.UniqueConstraint(
            "attempt_id", "ordinal", name=op.f("uq_rollout_group_attempt_id_ordinal")
        ),
    )
    op.create_index(
        "ix_group_to_grade",
        "rollout_group",
        ["attempt_id"],
        unique=False,
        postgresql_where=sa.text("graded_at is null"),
    )
    op.create_index(
        op.f("ix_rollout_group_job_id_id"), "rollout_group", ["job_id", "id"], unique=False
    )
    op.create_table(
        "train_step",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("group_ids", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("payloads", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("learning_rate", sa.Double(), nullable=False),
        sa.Column("weights_sha", sa.Text(), nullable=False),
        sa.Column("weights_uri", sa.Text(), nullable=False),
        sa.Column("probe_uri", sa.Text(), nullable=False),
        sa.Column("diverged", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_train_step_attempt_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_train_step_job_id")),
        sa.PrimaryKeyConstraint("attempt_id", "step", name=op.f("pk_train_step")),
    )
    op.create_table(
        "batch_member",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("staleness", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_batch_member_attempt_id")
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["rollout_group.id"], name=op.f("fk_batch_member_group_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_batch_member_job_id")),
        sa.PrimaryKeyConstraint("attempt_id", "step", "position", name=op.f("pk_batch_member")),
        sa.UniqueConstraint(
            "attempt_id", "group_id", name=op.f("uq_batch_member_attempt_id_group_id")
        ),
    )
    op.create_table(
        "rollout",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("try", sa.Integer(), server_default="1", nullable=False),
        sa.Column("hop", sa.Integer(), server_default="0", nullable=False),
        sa.Column("host_id", sa.Text(), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("unscorable_reason", sa.Text(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("disposition", sa.Text(), server_default="pending", nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("trajectory_uri", sa.Text(), nullable=True),
        sa.Column("trajectory_sha", sa.Text(), nullable=True),
        sa.Column("turns", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("oldest_version", sa.Integer(), nullable=True),
        sa.Column("newest_version", sa.Integer(), nullable=True),
        sa.Column("components", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "(verdict = 'scored') = (reward is not null)", name=op.f("ck_rollout_reward")
        ),
        sa.CheckConstraint("verdict in ('scored','unscorable')", name=op.f("ck_rollout_verdict")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name=op.f("fk_rollout_attempt_id")),
        sa.ForeignKeyConstraint(
            ["group_id"], ["rollout_group.id"], name=op.f("fk_rollout_group_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_rollout_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
        sa.UniqueConstraint("group_id", "index", name=op.f("uq_rollout_group_id_index")),
    )
    op.create_index(op.f("ix_rollout_job_id_id"), "rollout", ["job_id", "id"], unique=False)
    op.create_index(
        "ix_rollout_open",
        "rollout",
        ["attempt_id"],
        unique=False,
        postgresql_where=sa.text("closed_at is null"),
    )
    op.create_table(
        "rollout_try",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("try", sa.Integer(), nullable=False),
        sa.Column("end", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("counts", sa.Boolean(), nullable=False),
        sa.Column("hop", sa.Integer(), nullable=False),
        sa.Column(
            "ended_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollout.id"], name=op.f("fk_rollout_try_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "try", name=op.f("pk_rollout_try")),
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_table("rollout_try")
    op.drop_index(
        "ix_rollout_open", table_name="rollout", postgresql_where=sa.text("closed_at is null")
    )
    op.drop_index(op.f("ix_rollout_job_id_id"), table_name="rollout")
    op.drop_table("rollout")
    op.drop_table("batch_member")
    op.drop_table("train_step")
    op.drop_index(op.f("ix_rollout_group_job_id_id"), table_name="rollout_group")
    op.drop_index(
        "ix_group_to_grade",
        table_name="rollout_group",
        postgresql_where=sa.text("graded_at is null"),
    )
    op.drop_table("rollout_group")
    op.drop_table("metric")
    op.drop_table("evaluation")
    op.drop_index(op.f("ix_checkpoint_job_id_id"), table_name="checkpoint")
    op.drop_table("checkpoint")
    op.drop_table("job_event")
    op.drop_table("attempt")
    op.drop_index(op.f("ix_job_project_id_id"), table_name="job")
    op.drop_index("ix_job_active", table_name="job", postgresql_where=sa.text("ended_at is null"))
    op.drop_table("job")
    op.drop_table("environment_version")
    op.drop_index(
        "ix_operation_open", table_name="operation", postgresql_where=sa.text("ended_at is null")
    )
    op.drop_table("operation")
    op.drop_table("environment")
    op.drop_table("api_key")
    op.drop_table("project")
    op.drop_table("organization")
    op.drop_table("leadership")
    op.drop_table("idempotency")
    op.drop_index(op.f("ix_host_lease_attempt_id"), table_name="host_lease")
    op.drop_table("host_lease")
