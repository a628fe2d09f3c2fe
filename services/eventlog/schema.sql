-- Tables of the log beside the events themselves (those are the eventsourcing library's).
-- Forward only; each statement may run again.

CREATE TABLE IF NOT EXISTS tenure.leadership (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,
    holder text NOT NULL,
    said_at timestamptz NOT NULL -- when the holder last said that it lives
);
INSERT INTO tenure.leadership (epoch, holder, said_at) VALUES (0, 'nobody', now()) ON CONFLICT DO NOTHING;

-- One outcome per command id. `body_sha256` tells a repeated command from another one under the same id.
CREATE TABLE IF NOT EXISTS tenure.receipts (
    command_id text PRIMARY KEY,
    body_sha256 bytea NOT NULL,
    outcome bytea NOT NULL,
    position bigint,
    decided_at timestamptz NOT NULL DEFAULT now()
);

-- Append a group in one round trip. The lock comes first: positions then become visible in the order they are
-- drawn, and the epoch is read after any takeover that was ahead of us. Under the lock this transaction alone
-- draws positions, so its own are the last of the sequence; `back` counts from their end.
CREATE OR REPLACE FUNCTION tenure.append_events(
    given_epoch bigint, streams text[], versions bigint[], topics text[], states bytea[],
    command_ids text[], bodies bytea[], outcomes bytea[], backs bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE tenure.stored_events IN EXCLUSIVE MODE;
    IF given_epoch IS DISTINCT FROM (SELECT epoch FROM tenure.leadership) THEN
        RAISE EXCEPTION 'epoch % is over', given_epoch USING ERRCODE = 'TN001';
    END IF;
    RETURN QUERY
        INSERT INTO tenure.stored_events (originator_id, originator_version, topic, state)
        SELECT * FROM unnest(streams, versions, topics, states)
        RETURNING notification_id;
    IF cardinality(command_ids) > 0 THEN
        INSERT INTO tenure.receipts (command_id, body_sha256, outcome, position)
        SELECT r.command_id, r.body, r.outcome,
               CASE WHEN r.back IS NOT NULL
                    THEN currval(pg_get_serial_sequence('tenure.stored_events', 'notification_id')) - r.back END
        FROM unnest(command_ids, bodies, outcomes, backs) AS r (command_id, body, outcome, back);
    END IF;
END
$$;
