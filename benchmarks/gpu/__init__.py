"""Parts of benchmarks/gpu_check.py.

correctness  loss, logits and gradients in bf16 and fp16 against fp32
features     losses of trainings with one feature against the same training without it
training     updates of stock fairseq and ours, and the time of their kernels
sharded      fully_sharded on one device against plain training
results      finished table rows, stored in a file
"""
