"""The rules: `decide(command, world) -> Accepted | Rejected` and `fold(state, event) -> state`.

Pure. No clock, no ids of its own making, no I/O, no logging: time and ids come in, events go out. The
same fold runs in the writer, in the projector and in an audit years later, so a rule is written once.
"""
