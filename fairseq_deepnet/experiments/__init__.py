"""Sweeps of many runs, and the tables and figures of their results."""
