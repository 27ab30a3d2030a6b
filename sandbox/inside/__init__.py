"""Code of the fork server and its children, which runs beside hostile programs. Imports nothing from outside."""
