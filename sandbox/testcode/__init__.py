"""The run of test code: beside a program in another sandbox, or after it in its own process.

`judge` runs it and reports the verdict; `instrument` notes the checks that are executed; `collection` lets pytest run
test functions and classes; `null_search` looks for programs that solve nothing and pass.
"""
