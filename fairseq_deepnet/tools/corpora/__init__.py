"""Raw corpora become clean parallel text, subwords and fairseq's data folder."""
