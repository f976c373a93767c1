"""Parts of benchmarks/gpu_check.py."""
