"""Trained models for others to run: fairseq's stock Transformer, and CTranslate2."""
