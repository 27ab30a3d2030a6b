"""Evaluation of a model that a server holds (`rlvr eval --url`).

`speakers` turns prompts and conversations into what the server is asked with, `evaluation` sends the requests and keeps
the answers.
"""
