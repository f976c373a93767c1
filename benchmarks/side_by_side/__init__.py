"""Training systems side by side: each runs in its own process, and they run updates in turn.

systems   shapes of models, and the systems: fairseq's stock `transformer`, ours, torchscale's
torchscale_model
          torchscale's EncoderDecoder behind fairseq's interface
sentences generated corpus with the lengths of Multi30k
worker    the process of one system: fairseq's own Trainer, built from a command line
parts     time of the phases of an update
limits    time of the update's matrix products alone
memory    memory of a process
race      the processes and their rounds
tables    medians, spread, Markdown
"""
