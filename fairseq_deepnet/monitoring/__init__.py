"""Measurements during a run, through hooks that exist only in measured updates."""
