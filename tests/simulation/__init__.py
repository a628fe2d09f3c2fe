"""The production loops on simulated time, log, bus, processes and models: one seed, one thread, one story.

Run with `make sim SEEDS=2000`, or one story again with `python -m tests.simulation --seed 17 --show`.
"""
