"""The guide: its pages, the pages that are made from the code, and how both become a site (build.py)."""
