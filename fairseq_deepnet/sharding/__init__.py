"""`--ddp-backend fully_sharded`, based on torch's FSDP2; see docs/reference/sharding.md."""
