"""The control plane: the one active writer of a log, with its intake, its sessions and its clock."""
