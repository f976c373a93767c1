"""`--ddp-backend fully_sharded` on torch's `fully_shard` (FSDP2), see docs/reference/sharding.md.

- Where: `install` lets fairseq's trainer become a ShardedTrainer, which wraps its model as soon as
  it is made, before observers look at it and before the optimiser is built. No fairscale.
- Unit: neighbouring layers of a stack, as many as --bucket-cap-mb holds in the type of computation,
  in whole segments of activation checkpointing; all else (embeddings, the tied projection, final
  norms) is one unit, the root's.
- Weights are fp32 and split by rows; a unit is cast when it is gathered, gradients are summed in
  fp32. The optimiser is given plain tensors that share memory with the rows of this process, so
  that any pointwise one runs as it is, without fairseq's second copy of weights in half precision.
- Checkpoints are fairseq's ordinary files, gathered a tensor at a time into rank 0's host memory.
- Only rank 0 builds the weights, and gives each process its rows.
"""
