"""What everything else stands on. Standard library only, except for `http` (httpx2) and the hub in `files`.

types       Problem, Completion, Verdict, Task, Sampler: the shared types, and the letters for shapes
traits      the optional attributes of a verifier
registry    names of verifiers, task packs and environments; `make_verifier`, `make_task`, `make_environment`
seeding     `derive_seed`: a seed for each random choice
printable   text that is safe to show: for a terminal, without secrets; values of the command line
files       reading and writing files, finding models
http        JSON over HTTP; endpoint: a model on an OpenAI-compatible server
"""
