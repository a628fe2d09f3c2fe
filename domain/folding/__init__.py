"""What events mean: the states, the one fold of them, who may still speak, and the index across streams."""
