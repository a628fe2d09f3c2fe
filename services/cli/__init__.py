"""The `tenure` command.

One file per noun. Each holds the steps of its noun as plain coroutines over a `Client`, which `tenure demo`
calls as well, and thin commands around them. People get tables on stdout and messages on stderr; with `--json`
stdout holds one JSON document and nothing else. `exits` lists the exit codes.
"""
