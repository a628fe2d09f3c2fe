"""Current state as tables: what rows there are, and how each follows from a stream's folded state.

Folding is the domain's (`domain.folding.fold`), so fencing is decided by one rule in one place. This package turns
a folded state into rows and says what may be asked of them. It reads no clock and does no I/O.
"""
