"""What `deepnet` does for a user; torch and fairseq are imported where they are needed."""
