"""Runs as pictures: what they logged and what was measured in them, as images and as one page."""
