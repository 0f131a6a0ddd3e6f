"""jobs keep when they were last wished for"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.add_column(
        "job", sa.Column("desired_generation", sa.BigInteger(), server_default="1", nullable=False)
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_column("job", "desired_generation")
