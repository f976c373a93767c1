"""Measurements during a run, made by hooks that exist only during measured updates."""
