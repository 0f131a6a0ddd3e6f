"""evaluations on environments of their own"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    for name, empty in (("components", "'{}'"), ("environments", "'[]'")):
        op.add_column(
            "evaluation",
            sa.Column(
                name,
                postgresql.JSONB(astext_type=sa.Text()),
                server_default=sa.text(empty),
                nullable=False,
            ),
        )
    op.add_column("evaluation", sa.Column("selected", sa.Double(), nullable=True))
    op.execute("update evaluation set selected = score")
    op.add_column(
        "rollout_group",
        sa.Column("environment", sa.Integer(), server_default="0", nullable=False),
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_column("rollout_group", "environment")
    for name in ("selected", "environments", "components"):
        op.drop_column("evaluation", name)
