"""Reading and writing files: JSON Lines, atomic writes, models in folders and on the hub."""
