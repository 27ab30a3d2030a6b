"""Reading and writing files: JSON Lines, atomic writes, secrets, models in folders and on the hub."""
