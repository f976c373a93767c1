"""Downloads of corpora, and the conversion of raw text into data folders for fairseq."""
