"""From a trained model to scores that can be compared: translate, detokenise, score, tabulate."""
