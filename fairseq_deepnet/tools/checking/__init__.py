"""`deepnet check`: is a model what it is said to be? Measured, not read off its attributes.

The parts: `subject` builds or loads a model, `anatomy` finds its layers, `recording` watches a
forward pass, `behaviour` measures how branches join, `weights` how weights start, `wiring` what is
shared or out of reach, `usage` what is unused; `claim` says what is expected, `causes` what a
difference may come from, with each scheme's known `mistakes`; `joins` compares how branches join,
`inspection` puts all together, `text` prints it.
"""
