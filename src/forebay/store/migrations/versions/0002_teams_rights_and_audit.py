"""Teams and projects as rows, rights of keys, tokens of the admin API, its audit; regions in the ledger."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    create_teams()
    create_projects()
    add_owners_of_keys()
    extend_keys()
    create_tokens()
    create_audit()
    op.add_column("ledger_events", sa.Column("region", sa.Text(), nullable=False, server_default=""))


def create_teams() -> None:
    op.create_table(
        "gateway_teams",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_gateway_teams"),
    )


def create_projects() -> None:
    op.create_table(
        "gateway_projects",
        sa.Column("team", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        *make_rights(),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("team", "name", name="pk_gateway_projects"),
        sa.ForeignKeyConstraint(["team"], ["gateway_teams.name"], name="fk_gateway_projects_team"),
    )


def make_rights() -> list[sa.Column[object]]:
    return [
        sa.Column("endpoints", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("regions", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("tier_max", sa.String(20)),
        sa.Column("context_max_tokens", sa.BigInteger()),
        sa.Column("output_max_tokens", sa.BigInteger()),
    ]


def add_owners_of_keys() -> None:
    """What keys named so far becomes rows, beside `default` of `default`, which is always there."""
    now_ns = time.time_ns()
    op.execute(
        sa.text(
            "INSERT INTO gateway_teams (name, created_ns) "
            "SELECT team, min(at_ns) FROM (SELECT team, created_ns AS at_ns FROM gateway_keys "
            "UNION ALL SELECT 'default', :now_ns) AS named GROUP BY team"
        ).bindparams(now_ns=now_ns)
    )
    op.execute(
        sa.text(
            "INSERT INTO gateway_projects (team, name, models, created_ns) "
            "SELECT team, project, :models, min(at_ns) FROM "
            "(SELECT team, project, created_ns AS at_ns FROM gateway_keys "
            "UNION ALL SELECT 'default', 'default', :now_ns) AS named GROUP BY team, project"
        ).bindparams(now_ns=now_ns, models='["*"]')
    )


def extend_keys() -> None:
    with op.batch_alter_table("gateway_keys") as table:
        for column in make_rights():
            table.add_column(column)
        table.add_column(sa.Column("priority", sa.String(20), nullable=False, server_default="standard"))
        table.add_column(sa.Column("expires_ns", sa.BigInteger()))
        table.add_column(sa.Column("rotated_from", sa.String(40)))
        table.create_foreign_key(
            "fk_gateway_keys_team_project", "gateway_projects", ["team", "project"], ["team", "name"]
        )


def create_tokens() -> None:
    op.create_table(
        "gateway_tokens",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("prefix", sa.String(20), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("created_ns", sa.BigInteger(), nullable=False),
        sa.Column("expires_ns", sa.BigInteger()),
        sa.Column("revoked_ns", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_gateway_tokens"),
        sa.UniqueConstraint("digest", name="uq_gateway_tokens_digest"),
    )


def create_audit() -> None:
    op.create_table(
        "gateway_audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("actor_id", sa.String(40), nullable=False),
        sa.Column("actor_name", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(250), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_gateway_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_gateway_audit_subject", "gateway_audit", ["subject"])
