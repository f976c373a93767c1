"""Measurements during a training run; the model does not depend on them.

The monitor observes fairseq's trainer. Its hooks exist only during the updates that are measured.
"""
