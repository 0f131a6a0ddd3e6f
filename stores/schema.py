"""What all modules of tables share: the metadata with its names, and the columns of every table."""

from sqlalchemy import Column, DateTime, MetaData, func

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def created() -> Column[object]:
    """When the row was written, by database time."""
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())
