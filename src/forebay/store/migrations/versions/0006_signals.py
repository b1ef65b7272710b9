"""Load that applications report about their projects."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "gateway_signals",
        sa.Column("team", sa.String(100), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("value_micro", sa.BigInteger(), nullable=False),
        sa.Column("reported_ns", sa.BigInteger(), nullable=False),
        sa.Column("ttl_ns", sa.BigInteger()),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team", "project", "name", name="pk_gateway_signals"),
        sa.ForeignKeyConstraint(
            ["team", "project"],
            ["gateway_projects.team", "gateway_projects.name"],
            name="fk_gateway_signals_team_project",
        ),
    )
