"""Scoring of trained models: translation, detokenisation, metrics and tables."""
