"""Training systems side by side: each in a process of its own, told in turn to make an update.

systems   what is compared: fairseq's stock `transformer`, ours, torchscale's; their options
torchscale_model
          torchscale's EncoderDecoder behind fairseq's interface
sentences the corpus: made up, with the lengths of Multi30k
worker    the process of one system: fairseq's own Trainer, built from a command line
parts     where the time of an update goes
limits    how long the update's matrix products take by themselves
memory    what a process holds
race      the processes, kept alive, and their rounds
tables    medians, spread, Markdown
"""
