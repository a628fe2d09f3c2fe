"""How a model process comes to be, by a copy of the fork server or afresh, and how its end is seen."""
