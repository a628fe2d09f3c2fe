"""Adapters of models that see or make images."""
