"""Unit tests of programs: splitting test code, planning the runs, evaluating the answers."""
