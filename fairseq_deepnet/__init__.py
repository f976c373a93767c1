"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing the package is fast and registers nothing. Importing `fairseq_deepnet.models` registers
all classes with fairseq, which imports the module automatically if --user-dir is this package.

The package has three parts: the plugin for fairseq, the `deepnet` command in `tools/`, and tables
and figures of results in `experiments/`. The plugin imports neither of the other parts, and
`tools/` does not import `experiments/`.
"""

import logging

# fairseq logs the advice to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
