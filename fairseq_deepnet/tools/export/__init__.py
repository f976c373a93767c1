"""Trained models for others to run: fairseq's stock Transformer, CTranslate2, Hugging Face."""
