"""Which checkpoint is meant, and the average of several."""
