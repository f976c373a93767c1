"""`--ddp-backend fully_sharded` on torch's `fully_shard` (FSDP2), see docs/reference/sharding.md.

- Trainer: `install` makes fairseq build a ShardedTrainer, which wraps its model before observers
    and
  the optimiser see it. fairscale is not used.
- Unit: adjacent layers of a stack, as many as --bucket-cap-mb holds in the dtype of computation, in
  whole segments of activation checkpointing. Everything else (embeddings, the tied projection,
      final
  norms) is the root unit.
- Weights are fp32 and sharded by rows. A unit is cast when it is gathered; gradients are summed in
  fp32. The optimiser receives plain tensors that share memory with this process's rows, so that any
  pointwise optimiser works, without fairseq's second copy of weights in half precision.
- Checkpoints are fairseq's ordinary files, gathered one tensor at a time in rank 0's host memory.
- Only rank 0 initialises the weights, and sends each process its rows.
"""
