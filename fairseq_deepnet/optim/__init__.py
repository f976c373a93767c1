"""Optimisers for models with thousands of small tensors."""
