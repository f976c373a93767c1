"""Divergence of runs: detection, explanation, and an early stop."""
