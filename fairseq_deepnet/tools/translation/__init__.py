"""Translation of raw text by fairseq or CTranslate2, line by line."""
