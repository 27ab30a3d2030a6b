"""How a run ends in good order.

`signals.StopRequest`: Ctrl-C and SIGTERM end a run after a checkpoint. `watchdog`: ranks that hang or die end the
others, with a line that names them. `signals` loads without torch.
"""
