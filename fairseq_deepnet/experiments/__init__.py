"""Tables and figures of this and other papers, made of many runs."""
