"""Approved candidates at work: deployments, their jobs on nodes, invocations."""
