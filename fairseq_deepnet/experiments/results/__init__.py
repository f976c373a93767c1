"""Results of many runs: tables beside the paper's, figures, paired tests."""
