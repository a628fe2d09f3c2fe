"""Small models of real architectures, made by the real libraries from configurations, for tests.

Each module makes one architecture and says how the library itself answers: `MODELS` lists what it offers.
"""
