"""Mathematics: published problems to train on, and to evaluate on."""
