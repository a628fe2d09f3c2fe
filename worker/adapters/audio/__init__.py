"""Adapters for sound, and what a sound must go through before a model hears it."""
