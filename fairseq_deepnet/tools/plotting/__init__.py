"""Plots of logged and measured values, as images and as an HTML page."""
