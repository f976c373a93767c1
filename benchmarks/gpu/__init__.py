"""What benchmarks/gpu_check.py does: half precision's numbers, the loss's kernel, training.

correctness  loss, logits and gradients in bf16 and fp16 against fp32
loss         the criterion with one kernel for its tables against torch's own
training     updates of stock fairseq and ours, and the time of their kernels
sharded      fully_sharded on one device against the plain training
results      finished lines, kept in a file
"""
