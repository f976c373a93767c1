"""From raw parallel text to what fairseq trains on: checks, cleaning, subwords, the sample grammar."""
