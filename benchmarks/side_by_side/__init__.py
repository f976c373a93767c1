"""Training systems side by side: each runs in its own process, and they run updates in turn.

`race` starts the processes, `worker` is the process of one system, and `systems` defines shapes and
systems. `sentences` generates a corpus with the lengths of Multi30k. `tables` formats the results.
"""
