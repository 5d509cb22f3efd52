"""What only the owner may do, as functions that decide by themselves: make partitions, remove expired events.

The running role may call them and nothing more. `remove_events` trusts no argument: policy, age, holds, checkpoint and
digests are looked up in the tables, by the database's clock. A policy that keeps less than the one before is in force
a day after it was set, so that there is time to notice it, to place a hold and to take it back.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from libs.runtime.migrations import running_role

revision = "0004"
down_revision = "0003"

_SAFE = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'"

_STATEMENTS = (
    # true: the month has a partition; false: its events go to the rest, which is as good and only slower.
    f"""
    CREATE FUNCTION audit.ensure_partition(wanted date) RETURNS boolean LANGUAGE plpgsql {_SAFE}
        SET lock_timeout = '2s' AS $$
    DECLARE
        first date := date_trunc('month', wanted);
        after date := date_trunc('month', wanted) + interval '1 month';
        name text := 'event_' || to_char(date_trunc('month', wanted), 'YYYY_MM');
    BEGIN
        IF to_regclass('audit.' || name) IS NOT NULL THEN RETURN true; END IF;
        -- A clock that is wrong by years must not make a partition of every month there is.
        IF first < '2000-01-01' OR first > now() + interval '2 years' THEN RETURN false; END IF;
        PERFORM pg_advisory_xact_lock(hashtext('audit.partitions'));
        IF to_regclass('audit.' || name) IS NOT NULL THEN RETURN true; END IF;
        EXECUTE format('CREATE TABLE audit.%I (LIKE audit.event INCLUDING DEFAULTS)', name);
        EXECUTE format(
            'WITH moved AS (DELETE FROM audit.event_rest WHERE time >= %L AND time < %L RETURNING *) '
            'INSERT INTO audit.%I SELECT * FROM moved', first, after, name);
        EXECUTE format(
            'ALTER TABLE audit.event ATTACH PARTITION audit.%I FOR VALUES FROM (%L) TO (%L)', name, first, after);
        RETURN true;
    EXCEPTION
        -- The partition from before there were months holds this one, the table is busy, or the rest got such an event
        -- a moment ago: it moves next time.
        WHEN invalid_object_definition OR lock_not_available OR check_violation THEN RETURN false;
    END $$
    """,
    f"""
    CREATE FUNCTION audit.policy_in_force() RETURNS audit.retention_policy LANGUAGE sql STABLE {_SAFE} AS $$
        SELECT * FROM audit.retention_policy WHERE in_force_at <= now() ORDER BY version DESC LIMIT 1
    $$
    """,
    f"""
    CREATE FUNCTION audit.stamp_policy() RETURNS trigger LANGUAGE plpgsql {_SAFE} AS $$
    DECLARE
        before audit.retention_policy := audit.policy_in_force();
    BEGIN
        NEW.set_at := now();
        NEW.in_force_at := now();
        IF NEW.keep_days IS NOT NULL AND (before.keep_days IS NULL OR NEW.keep_days < before.keep_days) THEN
            NEW.in_force_at := now() + interval '1 day';
        END IF;
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER stamp_policy BEFORE INSERT ON audit.retention_policy "
    "FOR EACH ROW EXECUTE FUNCTION audit.stamp_policy()",
    f"""
    CREATE FUNCTION audit.is_held(entity text, mentioned text[], owner text, correlation text) RETURNS boolean
        LANGUAGE sql STABLE {_SAFE} AS $$
        SELECT EXISTS (
            SELECT FROM audit.legal_hold h
            WHERE NOT EXISTS (SELECT FROM audit.legal_hold_release r WHERE r.hold_id = h.id)
            AND CASE h.kind
                WHEN 'entity' THEN h.value = entity OR h.value = ANY (mentioned)
                WHEN 'tenant' THEN h.value = owner
                ELSE h.value = correlation END)
    $$
    """,
    f"""
    CREATE FUNCTION audit.remove_events(
        of_service text, first bigint, last bigint, signed text, key text, signature_ text
    ) RETURNS bigint LANGUAGE plpgsql {_SAFE} AS $$
    DECLARE
        policy audit.retention_policy := audit.policy_in_force();
        said jsonb := signed::jsonb;
        before_ text;
        end_ text;
        found_ bigint;
        newest_ timestamptz;
    BEGIN
        IF policy.keep_days IS NULL THEN RAISE EXCEPTION 'the policy in force keeps everything'; END IF;
        -- No hold comes between looking and removing.
        LOCK TABLE audit.legal_hold IN SHARE MODE;
        IF NOT EXISTS (SELECT FROM audit.checkpoint c WHERE c.service = of_service AND c.last_sequence >= last) THEN
            RAISE EXCEPTION 'no signed checkpoint of % covers %', of_service, last;
        END IF;
        SELECT count(*), max(e.time) INTO found_, newest_ FROM audit.event e
            WHERE e.service = of_service AND e.sequence BETWEEN first AND last;
        IF found_ = 0 OR newest_ >= now() - make_interval(days => policy.keep_days) THEN
            RAISE EXCEPTION 'events % to % of % are not there or not expired', first, last, of_service;
        END IF;
        IF EXISTS (
            SELECT FROM audit.event e WHERE e.service = of_service AND e.sequence BETWEEN first AND last
            AND audit.is_held(e.entity_id, e.mentions, e.tenant, e.correlation_id)
        ) THEN
            RAISE EXCEPTION 'a legal hold keeps events between % and % of %', first, last, of_service;
        END IF;
        SELECT coalesce((SELECT digest FROM (
            (SELECT e.sequence AS place, e.digest FROM audit.event e
                WHERE e.service = of_service AND e.sequence < first ORDER BY e.sequence DESC LIMIT 1)
            UNION ALL
            (SELECT r.last_sequence, r.digest FROM audit.removal r
                WHERE r.service = of_service AND r.last_sequence < first ORDER BY r.last_sequence DESC LIMIT 1)
            ORDER BY place DESC LIMIT 1) AS newest_before), '') INTO before_;
        SELECT e.digest INTO end_ FROM audit.event e WHERE e.service = of_service AND e.sequence = last;
        IF (said ->> 'service', (said ->> 'first_sequence')::bigint, (said ->> 'last_sequence')::bigint,
            (said ->> 'events')::bigint, said ->> 'digest_before', said ->> 'digest', (said ->> 'policy_version')::int)
            IS DISTINCT FROM (of_service, first, last, found_, before_, end_, policy.version)
        THEN
            RAISE EXCEPTION 'the signed statement does not say what is removed: %', signed;
        END IF;
        INSERT INTO audit.removal (service, first_sequence, last_sequence, events, digest_before, digest, newest,
                policy_version, statement, key_id, signature)
            VALUES (of_service, first, last, found_, before_, end_, newest_, policy.version, signed, key, signature_);
        DELETE FROM audit.event e WHERE e.service = of_service AND e.sequence BETWEEN first AND last;
        RETURN found_;
    END $$
    """,
    # Months that are over for the policy in force and have no row left. Returns how many were dropped.
    f"""
    CREATE FUNCTION audit.drop_empty_partitions() RETURNS integer LANGUAGE plpgsql {_SAFE}
        SET lock_timeout = '2s' AS $$
    DECLARE
        policy audit.retention_policy := audit.policy_in_force();
        part text;
        is_empty boolean;
        dropped integer := 0;
    BEGIN
        IF policy.keep_days IS NULL THEN RETURN 0; END IF;
        FOR part IN
            SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'audit.event'::regclass AND (c.relname = 'event_before'
                OR c.relname ~ '^event_\\d{{4}}_\\d{{2}}$' AND to_date(right(c.relname, 7), 'YYYY_MM')
                    + interval '1 month' < now() - make_interval(days => policy.keep_days))
        LOOP
            EXECUTE format('SELECT NOT EXISTS (SELECT FROM audit.%I)', part) INTO is_empty;
            IF is_empty THEN
                EXECUTE format('DROP TABLE audit.%I', part);
                dropped := dropped + 1;
            END IF;
        END LOOP;
        RETURN dropped;
    EXCEPTION
        WHEN lock_not_available THEN RETURN 0;
    END $$
    """,
)
_CALLABLE = (
    "ensure_partition(date)",
    "policy_in_force()",
    "is_held(text, text[], text, text)",
    "remove_events(text, bigint, bigint, text, text, text)",
    "drop_empty_partitions()",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)
    running = running_role("audit")
    exists = op.get_bind().scalar(text("SELECT 1 FROM pg_roles WHERE rolname = :r"), {"r": running})
    for function in _CALLABLE:
        op.execute(f"REVOKE ALL ON FUNCTION audit.{function} FROM PUBLIC")
        if exists:
            op.execute(f"GRANT EXECUTE ON FUNCTION audit.{function} TO {running}")
