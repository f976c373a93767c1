"""What a training will need: parameters, memory, time, and the options that make it fit."""
