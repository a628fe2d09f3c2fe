"""What commands lead to: the world a decision sees, its outcome, and how that settles into events."""
