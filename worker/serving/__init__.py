"""Residents and the invocations they answer."""
