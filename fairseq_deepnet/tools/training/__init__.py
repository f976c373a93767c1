"""Training runs: plan, records, launch, signals and fallbacks."""
