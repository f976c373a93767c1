"""Training runs: planning, records, launching, signals and fallbacks."""
