"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing it costs nothing. fairseq imports `models/` of a user-dir by itself, which registers
everything; in Python, use `import fairseq_deepnet.models`.

It has three parts, which import one way, experiments -> tools -> plugin: fairseq loads the plugin,
`tools/` implements `deepnet`, and `experiments/` makes tables and figures.
"""

import logging

# Importing fairseq advises everyone to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
