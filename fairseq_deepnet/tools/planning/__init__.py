"""Plans of training runs: parameters, memory, operations, and options that make a run fit."""
