"""What is, and what was: residencies, nodes, work, events and the audit."""
