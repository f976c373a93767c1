"""Trainings that diverge: noticed while they run, explained, ended or restarted; judged afterwards.

`watch` sits on fairseq's trainer as the monitor does; `detectors` say what counts as trouble and
`causes` why; `options` has the policies and `fallbacks` what to change. `verdict` judges finished
trainings by their losses alone.
"""
