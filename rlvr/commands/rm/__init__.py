"""The training of reward models on preference pairs (`rlvr rm RECIPE`).

`launch` checks settings, names, files and the folder without torch; `training` samples pairs, trains and measures.
"""
