"""The event log: the record of everything, and the only one."""
