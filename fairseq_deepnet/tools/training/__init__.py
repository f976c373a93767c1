"""Training runs: planned, recorded, handed to fairseq on one device or many, and followed."""
