"""Tables of what a project holds besides environments and jobs: models and datasets.

A deleted row stays for those that named it; its name is
free again.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from stores.schema import created, metadata

IS_LIVE = text("deleted_at is null")


model = Table(
    "model",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    # What a job's `model.base` says: `upload:ID` or `hf:ORG/NAME@REV`.
    Column("ref", Text, nullable=False),
    # {type: upload} | {type: checkpoint, checkpoint} | {type: hub, repo, revision, commit?}.
    Column("source", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("findings", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("context_tokens", Integer),
    Column("parameters", BigInteger),
    # [{name, size, sha, uri}]: the closed set of names of a model folder.
    Column("files", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    created(),
    Column("deleted_at", DateTime(timezone=True)),
    CheckConstraint("state in ('validating','ready','failed')", name="state"),
    Index("uq_model_name", "project_id", "name", unique=True, postgresql_where=IS_LIVE),
    Index("uq_model_ref", "project_id", "ref", unique=True, postgresql_where=IS_LIVE),
    Index(None, "project_id", "id"),
)

dataset = Table(
    "dataset",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("latest_version", Integer, nullable=False, server_default="0"),
    created(),
    Column("deleted_at", DateTime(timezone=True)),
    Index("uq_dataset_name", "project_id", "name", unique=True, postgresql_where=IS_LIVE),
    Index(None, "project_id", "id"),
)

dataset_version = Table(
    "dataset_version",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset_id", Text, ForeignKey("dataset.id"), nullable=False),
    Column("version", Integer, nullable=False),
    # Over the splits' names and the sha256 of their bytes: the same content is the same version.
    Column("content_sha", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("findings", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    # Findings that were counted and not listed, by code.
    Column("unlisted", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    # {split: {uri, sha, size, rows?}}; rows are counted by validation.
    Column("files", JSONB, nullable=False),
    created(),
    CheckConstraint("state in ('validating','ready','failed')", name="state"),
    UniqueConstraint("dataset_id", "version"),
    UniqueConstraint("dataset_id", "content_sha"),
)
