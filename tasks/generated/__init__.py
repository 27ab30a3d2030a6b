"""Problems made by the pack itself, without a data set; small enough for a tiny model on a CPU."""
