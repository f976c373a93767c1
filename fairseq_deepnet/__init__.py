"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing the package takes no time and registers nothing. fairseq automatically imports `models/`
of a user-dir, which registers everything; in Python, use `import fairseq_deepnet.models`.

The package has three parts, which import in one direction, experiments -> tools -> plugin: fairseq
loads the plugin, `tools/` implements `deepnet`, and `experiments/` makes tables and figures.
"""

import logging

# fairseq logs the advice to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
