"""Public benchmark libraries: what is in them, what is known about it, and where to get it."""
