"""The reference documents, made from the contract and never written by hand.

`python -m schemas.generate` writes under docs/reference:

* `bus.md`: every subject, stream, header, command, event, code and limit, with examples for any NATS client
* `schemas/<family>.json`: JSON Schema 2020-12, one bundle for each family of messages
* `asyncapi.json`: the same bus as an AsyncAPI 3.0 document

`--check` writes nothing, names each file that differs from what would be written, and exits with 1.

The documents are functions of the structs alone: no clock, no environment, no random order, so that two
runs give the same bytes. `contract.py` holds the few facts that a struct cannot say (who sends, who
answers); tests hold those facts against the rest of the program. Only `__main__.py` touches files: it
is the one place in `schemas` that does.
"""
