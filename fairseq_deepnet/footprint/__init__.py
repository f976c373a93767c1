"""Bytes that a training holds on a device: parameters, states and activations.

Knows layers and schemes, not the models.
"""
