"""`deepnet check`: is a model what it is claimed to be? Measured, not read off its attributes.

`measure` runs a model and fits its residual connections, `claims` says what is expected, `compare`
reports where the two differ; they know torch modules alone. `command` is the command line.
"""
