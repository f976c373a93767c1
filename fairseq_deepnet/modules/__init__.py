"""Transformer modules, which depend on residual schemes but on no fairseq model."""
