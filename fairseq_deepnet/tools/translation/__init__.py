"""Raw text in, text out: a model on either engine, and lines that stream through it."""
