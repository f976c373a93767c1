"""Requirements of a training run: parameters, memory, operations, and options that make it fit."""
