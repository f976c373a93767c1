"""Download of corpora, and conversion of raw text into data folders for fairseq."""
