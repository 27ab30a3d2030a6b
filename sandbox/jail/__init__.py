"""The process that runs a program: the fork server, its children, and the layers that confine them.

`server` forks one `child` a run and ends all that it leaves behind. `isolation` prepares the layers: `namespaces`,
`landlock`, `seccomp`, limits; `kernel` has the system calls behind them. `usage` counts what a run's processes use
together. `interpreter` and `shared_memory` are what a program finds as under `python main.py`. `confine`
confines a process before it becomes a program that is not Python. Nothing here imports anything of the caller's side.
"""
