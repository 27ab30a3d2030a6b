"""Builders that several test files share: verifiers, runs, models, batches and files."""
