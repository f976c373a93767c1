"""Measurements during a run, through hooks that exist only during measured updates."""
