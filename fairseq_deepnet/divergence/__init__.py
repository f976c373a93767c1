"""Divergence of training runs: detection, explanation, and an early stop.

`watch` observes fairseq's trainer, as the monitor does. `detectors` define trouble, `events`
explains it. The watch warns, or records the end and stops the run; restarting with gentler options
is up to the supervisor (tools/training). experiments/results.py judges finished runs.
"""
