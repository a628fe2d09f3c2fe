"""What a program needs to use a control plane: commands, queries, waiting for work, the workers' word, invocations.

`Client` is all that most callers need. `wire` is the port it talks to the bus through; `answers` says what of the
answers is believed, `live` what may be said about a residency now, and `operator` who is asking.
"""

from services.client.client import Client

__all__ = ["Client"]
