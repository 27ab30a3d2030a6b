"""The folder of a run: what it holds, who may write there, and what its logs say.

`folder` claims, locks and resumes it. `log` writes its logs, `reading` reads them while they grow. `records` shows
lines as text, `conclusions` says what went wrong in a run. `trackers` opens Accelerate's experiment trackers and
sends them what a run logs, with the tables of `tracker_tables`.
"""
