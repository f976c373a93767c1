"""Measurements inside a training run, on which the model does not depend.

The monitor observes fairseq's trainer. Its hooks exist only during an update that is due.
"""
