"""What `unit_tests` does with references: planning the runs, proving that tests are strong, comparing the answers."""
