"""The `tenure` command.

`app` lists every noun and verb; a noun is found in the folder named like its panel of `tenure --help`: `prove`,
`serve`, `look`. `up`, `demo` and `doctor` start things. Each noun holds its steps as plain coroutines over a
`Client`, which `tenure demo` calls as well, and thin commands around them. `screen` is what a person sees: people
get tables on stdout and messages on stderr; with `--json` stdout holds one JSON document and nothing else.
`context` and `options` are what commands share, and `exits` lists the exit codes.
"""
