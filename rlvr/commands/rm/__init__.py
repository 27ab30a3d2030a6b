"""The training of reward models on preference pairs (`rlvr rm RECIPE`).

`launch` checks settings, names and files without torch; `training` samples pairs, trains and measures; `folder` is the
folder of such a run.
"""
