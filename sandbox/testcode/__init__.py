"""The run of test code: beside a program in another sandbox, or after it in its own process.

`judge` runs it and reports the verdict; `instrument` counts the checks that are executed; `collection` runs test
functions and classes with their fixtures; `pytest_stub` is what test code imports of pytest.
"""
