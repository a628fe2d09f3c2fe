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
