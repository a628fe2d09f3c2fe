"""Work taken from the control plane: offers, leases, what each kind does, and the evidence of it."""
