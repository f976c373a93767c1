"""Sweeps of many runs, and tables and figures of their results."""
