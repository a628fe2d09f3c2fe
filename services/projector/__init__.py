"""The projector: keeps the `view.*` tables equal to the fold of the log."""
