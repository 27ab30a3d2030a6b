"""Programs: functions with tests, and contests. The verifier runs them in the sandbox."""
