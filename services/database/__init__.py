"""Connections to PostgreSQL, made so that every call on one ends."""
