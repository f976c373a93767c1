"""Subcommands of `deepnet`, which import torch and fairseq only when needed."""
