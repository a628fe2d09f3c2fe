"""The query API: reads the projected tables, and says how fresh they are."""
