"""The processes and their composition: the only place that knows Postgres, NATS and the clock."""
