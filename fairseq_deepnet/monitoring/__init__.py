"""Measurements inside a training run, made from outside: the model does not depend on them.

Instruments observe fairseq's trainer. They are attached for an update that is due and removed after
it.
"""
