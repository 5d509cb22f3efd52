"""The bus's own tables, one set in every service's schema; only libs/bus, libs/saga and libs/projection touch them."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

PENDING, DONE, DEAD, DROPPED = 0, 1, 2, 3


class BusTables:
    """Table objects for one schema."""

    def __init__(self, schema: str) -> None:
        metadata = MetaData(schema=schema)
        self.outbox = Table(
            "outbox",
            metadata,
            Column("id", BigInteger, primary_key=True),
            Column("message_id", String, nullable=False),
            Column("is_event", Boolean, nullable=False),
            Column("subject", Text, nullable=False),
            Column("tenant", Text, nullable=False),
            Column("payload", LargeBinary, nullable=False),
            Column("seq", BigInteger),
            Column("tenant_seq", BigInteger),
            Column("created_at", DateTime(timezone=True), nullable=False),
            Column("published_at", DateTime(timezone=True)),
        )
        self.inbox = Table(
            "inbox",
            metadata,
            Column("id", BigInteger, primary_key=True),
            Column("message_id", String, nullable=False),
            Column("key", Text, nullable=False),
            Column("subject", Text, nullable=False),
            Column("payload", LargeBinary, nullable=False),
            Column("state", SmallInteger, nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("due_at", DateTime(timezone=True), nullable=False),
            Column("received_at", DateTime(timezone=True), nullable=False),
            Column("done_at", DateTime(timezone=True)),
            Column("error", Text),
            Column("cause", Text),
            Column("dead_at", DateTime(timezone=True)),
        )
        self.dead_letter_action = Table(
            "dead_letter_action",
            metadata,
            Column("id", BigInteger, primary_key=True),
            Column("inbox_id", BigInteger, nullable=False),
            Column("message_id", Text, nullable=False),
            Column("action", Text, nullable=False),
            Column("reason", Text, nullable=False),
            Column("actor", Text, nullable=False),
            Column("at", DateTime(timezone=True), nullable=False),
            Column("cause_before", Text),
            Column("error_before", Text),
            Column("attempts_before", Integer, nullable=False),
            Column("payload_before", LargeBinary),
        )
        self.saga = Table(
            "saga",
            metadata,
            Column("id", Text, primary_key=True),
            Column("kind", Text, nullable=False),
            Column("phase", Text, nullable=False),
            Column("status", Text, nullable=False),
            Column("state", JSONB, nullable=False),
            Column("version", Integer, nullable=False),
            Column("target_kind", Text, nullable=False),
            Column("target_id", Text, nullable=False),
            Column("tenant", Text, nullable=False),
            Column("correlation_id", Text, nullable=False),
            Column("actor", Text, nullable=False),
            Column("answers", JSONB),
            Column("created_at", DateTime(timezone=True), nullable=False),
            Column("updated_at", DateTime(timezone=True), nullable=False),
        )
        self.saga_timer = Table(
            "saga_timer",
            metadata,
            Column("saga_id", Text, primary_key=True),
            Column("token", Text, primary_key=True),
            Column("due_at", DateTime(timezone=True), nullable=False),
        )
        self.projection_position = Table(
            "projection_position",
            metadata,
            Column("projection", Text, primary_key=True),
            Column("stream", Text, primary_key=True),
            Column("position", BigInteger, nullable=False),
            Column("updated_at", DateTime(timezone=True), nullable=False),
        )
        self.idempotency = Table(
            "idempotency",
            metadata,
            Column("key", Text, primary_key=True),
            Column("actor", Text, primary_key=True),
            Column("request_digest", Text, nullable=False),
            Column("answer", JSONB, nullable=False),
            Column("created_at", DateTime(timezone=True), nullable=False),
        )


@lru_cache
def bus_tables(schema: str) -> BusTables:
    """The bus's tables of one schema (the same objects every time)."""
    return BusTables(schema)


def bus_ddl(schema: str) -> list[str]:
    """The statements that make the bus's tables as they are today, in an empty schema."""
    return [*first_ddl(schema), *keeping_ddl(schema)]


def keeping_ddl(schema: str) -> list[str]:
    """What came second: dead letters with their history, memory and its limit, restores, rebuilds, replays."""
    return [
        # Commands not sent yet are found at once, however many events wait.
        f"DROP INDEX {schema}.outbox_unsent",
        f"CREATE INDEX outbox_unsent ON {schema}.outbox (is_event, id) WHERE published_at IS NULL",
        f"ALTER TABLE {schema}.inbox ADD COLUMN cause text, ADD COLUMN dead_at timestamptz",
        f"UPDATE {schema}.inbox SET cause = 'handler_failed', dead_at = received_at WHERE state = 2",
        f"CREATE INDEX inbox_dead ON {schema}.inbox (id) WHERE state = 2",
        f"""CREATE TABLE {schema}.dead_letter_action (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            inbox_id bigint NOT NULL,
            message_id text NOT NULL,
            action text NOT NULL CHECK (action IN ('redriven', 'edited', 'dropped')),
            reason text NOT NULL CHECK (reason <> ''),
            actor text NOT NULL,
            at timestamptz NOT NULL DEFAULT now(),
            cause_before text,
            error_before text,
            attempts_before integer NOT NULL,
            payload_before bytea CHECK ((payload_before IS NOT NULL) = (action = 'edited')))""",
        f"CREATE INDEX dead_letter_action_inbox ON {schema}.dead_letter_action (inbox_id)",
        # One row: ids of messages sent before this instant may have been forgotten, so such messages are refused.
        f"""CREATE TABLE {schema}.inbox_memory (
            single boolean PRIMARY KEY DEFAULT true CHECK (single), forgotten_before timestamptz NOT NULL)""",
        f"INSERT INTO {schema}.inbox_memory (forgotten_before) VALUES ('1970-01-01Z')",
        # The highest epoch seen of each source; what is older comes from before a restore of its database.
        f"""CREATE TABLE {schema}.peer_epoch (
            source text PRIMARY KEY, epoch integer NOT NULL CHECK (epoch >= 1), seen_at timestamptz NOT NULL)""",
        f"""CREATE TABLE {schema}.restore (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            detected_at timestamptz NOT NULL DEFAULT now(),
            epoch_before integer NOT NULL,
            epoch integer NOT NULL UNIQUE,
            own_last bigint NOT NULL,
            stream_last bigint NOT NULL,
            open_sagas integer NOT NULL,
            set_aside_messages integer NOT NULL,
            accepted_at timestamptz,
            accepted_by text,
            reason text,
            CHECK (stream_last > own_last AND epoch > epoch_before),
            CHECK ((accepted_at IS NULL) = (accepted_by IS NULL) AND (accepted_at IS NULL) = (reason IS NULL)))""",
        f"CREATE UNIQUE INDEX restore_waiting ON {schema}.restore ((true)) WHERE accepted_at IS NULL",
        # How far each command stream was when last looked at: one that has gone backwards has lost commands.
        f"""CREATE TABLE {schema}.stream_seen (
            stream text PRIMARY KEY, made_at timestamptz NOT NULL, last_seq bigint NOT NULL CHECK (last_seq >= 0))""",
        f"""CREATE TABLE {schema}.projection_rebuild (
            projection text PRIMARY KEY,
            state text NOT NULL CHECK (state IN ('running', 'done', 'failed')),
            swap boolean NOT NULL,
            requested_by text NOT NULL,
            started_at timestamptz NOT NULL,
            updated_at timestamptz NOT NULL,
            positions jsonb NOT NULL,
            targets jsonb NOT NULL,
            events bigint NOT NULL,
            seconds double precision NOT NULL,
            digest_live text,
            digest_rebuilt text,
            changes jsonb,
            error text,
            CHECK ((state = 'failed') = (error IS NOT NULL)))""",
        f"""CREATE TABLE {schema}.replay (
            id text PRIMARY KEY,
            state text NOT NULL CHECK (state IN ('running', 'done', 'cancelled', 'failed')),
            subject text NOT NULL,
            wanted jsonb NOT NULL,
            requested_by text NOT NULL,
            started_at timestamptz NOT NULL,
            updated_at timestamptz NOT NULL,
            position bigint NOT NULL,
            last bigint NOT NULL,
            published bigint NOT NULL,
            error text,
            CHECK ((state = 'failed') = (error IS NOT NULL)))""",
    ]


def first_ddl(schema: str) -> list[str]:
    """The statements of the services' first migrations."""
    return [
        f"""CREATE TABLE {schema}.outbox (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            message_id text NOT NULL,
            is_event boolean NOT NULL,
            subject text NOT NULL,
            tenant text NOT NULL,
            payload bytea NOT NULL,
            seq bigint UNIQUE,
            tenant_seq bigint,
            created_at timestamptz NOT NULL DEFAULT now(),
            published_at timestamptz,
            CHECK (is_event OR seq IS NULL),
            CHECK ((seq IS NULL) = (tenant_seq IS NULL)))""",
        f"CREATE INDEX outbox_unnumbered ON {schema}.outbox (id) WHERE is_event AND seq IS NULL",
        f"CREATE INDEX outbox_unsent ON {schema}.outbox (id) WHERE published_at IS NULL",
        f"""CREATE TABLE {schema}.tenant_sequence (
            tenant text PRIMARY KEY, last bigint NOT NULL CHECK (last >= 0))""",
        f"""CREATE TABLE {schema}.inbox (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            message_id text NOT NULL UNIQUE,
            key text NOT NULL,
            subject text NOT NULL,
            payload bytea NOT NULL,
            state smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
            attempts integer NOT NULL DEFAULT 0,
            due_at timestamptz NOT NULL DEFAULT now(),
            received_at timestamptz NOT NULL DEFAULT now(),
            done_at timestamptz,
            error text)""",
        f"CREATE INDEX inbox_open ON {schema}.inbox (key, id) WHERE state IN (0, 2)",
        f"CREATE INDEX inbox_due ON {schema}.inbox (id) WHERE state = 0",
        f"""CREATE TABLE {schema}.saga (
            id text PRIMARY KEY,
            kind text NOT NULL,
            phase text NOT NULL CHECK (phase IN ('running', 'undoing', 'parked', 'finished')),
            status text NOT NULL,
            state jsonb NOT NULL,
            version integer NOT NULL,
            target_kind text NOT NULL,
            target_id text NOT NULL,
            tenant text NOT NULL,
            correlation_id text NOT NULL,
            actor text NOT NULL,
            answers jsonb,
            created_at timestamptz NOT NULL,
            updated_at timestamptz NOT NULL,
            CHECK ((phase = 'finished') = (status IN ('SUCCEEDED', 'FAILED', 'CANCELLED'))))""",
        f"CREATE INDEX saga_target ON {schema}.saga (target_id, created_at)",
        f"CREATE INDEX saga_open ON {schema}.saga (kind) WHERE phase <> 'finished'",
        f"""CREATE TABLE {schema}.saga_timer (
            saga_id text NOT NULL, token text NOT NULL, due_at timestamptz NOT NULL, PRIMARY KEY (saga_id, token))""",
        f"CREATE INDEX saga_timer_due ON {schema}.saga_timer (due_at)",
        f"""CREATE TABLE {schema}.lease (
            name text PRIMARY KEY,
            holder text NOT NULL,
            token bigint NOT NULL,
            expires_at timestamptz NOT NULL)""",
        f"""CREATE TABLE {schema}.projection_position (
            projection text NOT NULL, stream text NOT NULL, position bigint NOT NULL CHECK (position >= 0),
            updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (projection, stream))""",
        f"""CREATE TABLE {schema}.idempotency (
            key text NOT NULL, actor text NOT NULL, request_digest text NOT NULL, answer jsonb NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (key, actor))""",
        f"CREATE TABLE {schema}.epoch (single boolean PRIMARY KEY DEFAULT true CHECK (single), epoch integer NOT NULL)",
        f"INSERT INTO {schema}.epoch (epoch) VALUES (1)",
    ]
