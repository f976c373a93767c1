"""`--ddp-backend fully_sharded` on torch's FSDP2, see docs/reference/sharding.md."""
