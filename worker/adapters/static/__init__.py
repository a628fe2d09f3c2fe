"""Runtimes whose models are recognised and described here, and not run: each tells the facts and the reason."""
