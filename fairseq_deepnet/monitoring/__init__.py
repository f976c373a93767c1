"""Looking at a training from outside: what is measured, what is a divergence, what follows.

The model does not know it is watched: everything hangs on fairseq's trainer (`trainer`), attaches
hooks for the update that is due and removes them after it.
"""
