"""Trainings that diverge: noticed while they run, explained, stopped; judged afterwards.

`watch` sits on fairseq's trainer as the monitor does; `detectors` say what counts as trouble and
`causes` why. It warns, or keeps the last good state, writes one record and stops: to start again
with gentler options is the supervisor's (tools/training). `verdict` judges finished trainings by
their losses alone.
"""
