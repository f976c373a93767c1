"""Parts of benchmarks/gpu_check.py.

correctness  loss, logits and gradients in bf16 and fp16 against fp32
features     losses of short runs with one feature against the same runs without it
training     updates of stock fairseq and ours, and the time of their kernels
commands     fairseq-train: two processes on one device, an error in one, resuming
results      finished table rows, stored in a file
"""
