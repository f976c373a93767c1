"""fairseq's cross-entropies, computed in chunks to save memory."""
