"""The relay: keeps JetStream EVENTS a true copy of the log."""
