"""Subscribers and webhooks. A password is kept as a digest only, a webhook's secret not at all."""

from __future__ import annotations

from alembic import op

from libs.runtime.migrations import bus_keeping, bus_tables, grants, projection_tables

revision = "0001"
down_revision = None

_TABLES = (
    """
    CREATE TABLE subscription.subscriber (
        id text PRIMARY KEY,
        tenant text NOT NULL,
        name text NOT NULL CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
        subjects jsonb NOT NULL CHECK (jsonb_array_length(subjects) > 0),
        begins text NOT NULL CHECK (begins IN ('now', 'start', 'time')),
        begins_at timestamptz NOT NULL,
        max_ack_pending integer NOT NULL CHECK (max_ack_pending > 0),
        max_waiting integer NOT NULL CHECK (max_waiting > 0),
        ack_wait_seconds integer NOT NULL CHECK (ack_wait_seconds > 0),
        generation integer NOT NULL CHECK (generation > 0),
        password_digest text NOT NULL,
        old_password_digest text,
        old_password_until timestamptz,
        state text NOT NULL CHECK (state IN ('PENDING', 'ACTIVE', 'DELETED')),
        cleaned boolean NOT NULL DEFAULT false,
        version integer NOT NULL,
        created_by text NOT NULL,
        created_at timestamptz NOT NULL,
        updated_at timestamptz NOT NULL,
        CHECK ((old_password_digest IS NULL) = (old_password_until IS NULL)))
    """,
    "CREATE UNIQUE INDEX subscriber_name ON subscription.subscriber (tenant, name) WHERE state <> 'DELETED'",
    "CREATE INDEX subscriber_unclean ON subscription.subscriber (id) WHERE NOT cleaned",
    """
    CREATE TABLE subscription.subscriber_status (
        subscriber_id text PRIMARY KEY REFERENCES subscription.subscriber (id),
        behind bigint NOT NULL,
        unacknowledged bigint NOT NULL,
        redelivered bigint NOT NULL,
        acknowledged_through bigint NOT NULL,
        lost_before bigint NOT NULL,
        last_seen_at timestamptz,
        acknowledged_at timestamptz,
        measured_at timestamptz NOT NULL)
    """,
    """
    CREATE TABLE subscription.webhook (
        id text PRIMARY KEY,
        tenant text NOT NULL,
        name text NOT NULL CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
        url text NOT NULL,
        services jsonb NOT NULL,
        types jsonb NOT NULL,
        entities jsonb NOT NULL,
        signature text NOT NULL CHECK (signature IN ('hmac', 'ed25519')),
        generation integer NOT NULL CHECK (generation > 0),
        old_generation_until timestamptz,
        state text NOT NULL CHECK (state IN ('ACTIVE', 'PAUSED', 'DISABLED', 'DELETED')),
        problem text NOT NULL DEFAULT '',
        version integer NOT NULL,
        created_by text NOT NULL,
        created_at timestamptz NOT NULL,
        updated_at timestamptz NOT NULL,
        CHECK ((state = 'DISABLED') = (problem <> '')))
    """,
    "CREATE UNIQUE INDEX webhook_name ON subscription.webhook (tenant, name) WHERE state <> 'DELETED'",
    """
    CREATE TABLE subscription.webhook_progress (
        webhook_id text PRIMARY KEY REFERENCES subscription.webhook (id),
        position text,
        moves integer NOT NULL DEFAULT 0,
        failures integer NOT NULL DEFAULT 0,
        failing_since timestamptz,
        delivered bigint NOT NULL DEFAULT 0,
        caught_up boolean NOT NULL DEFAULT false,
        gaps bigint NOT NULL DEFAULT 0,
        last_delivered_at timestamptz,
        last_error text,
        updated_at timestamptz NOT NULL,
        CHECK ((failures = 0) = (failing_since IS NULL)))
    """,
    """
    CREATE TABLE subscription.delivery (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        webhook_id text NOT NULL REFERENCES subscription.webhook (id),
        kind text NOT NULL CHECK (kind IN ('event', 'ping')),
        message_id text NOT NULL,
        entity_id text NOT NULL,
        type text NOT NULL,
        payload bytea NOT NULL,
        state text NOT NULL CHECK (state IN ('WAITING', 'DELIVERED', 'GIVEN_UP')),
        attempts integer NOT NULL DEFAULT 0,
        due_at timestamptz NOT NULL,
        status integer,
        error text,
        created_at timestamptz NOT NULL,
        finished_at timestamptz,
        CHECK ((state = 'WAITING') = (finished_at IS NULL)))
    """,
    """
    CREATE UNIQUE INDEX delivery_waiting_once ON subscription.delivery (webhook_id, message_id)
    WHERE state = 'WAITING'
    """,
    "CREATE INDEX delivery_open ON subscription.delivery (webhook_id, id) WHERE state = 'WAITING'",
    "CREATE INDEX delivery_listed ON subscription.delivery (webhook_id, id)",
)


def upgrade() -> None:
    bus_tables(op, "subscription")
    for statement in _TABLES:
        op.execute(statement)
    projection_tables(op, "subscription", [])
    grants(op, "subscription", history=())
    bus_keeping(op, "subscription")
