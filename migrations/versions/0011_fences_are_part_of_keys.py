"""fences are part of keys; rollouts with failed tries and single series are found"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_unique_constraint(op.f("uq_host_lease_id_epoch"), "host_lease", ["id", "epoch"])
    op.create_index(
        "ix_rollout_retried",
        "rollout",
        ["job_id", "id"],
        postgresql_where=sa.text("try > 1"),
    )
    op.create_index("ix_metric_by_name", "metric", ["attempt_id", "name", "step"])
    op.create_unique_constraint(op.f("uq_leadership_id_term"), "leadership", ["id", "term"])


def downgrade() -> None:
    """Take this revision back."""
    op.drop_index("ix_metric_by_name", table_name="metric")
    op.drop_index("ix_rollout_retried", table_name="rollout")
    op.drop_constraint(op.f("uq_leadership_id_term"), "leadership", type_="unique")
    op.drop_constraint(op.f("uq_host_lease_id_epoch"), "host_lease", type_="unique")
