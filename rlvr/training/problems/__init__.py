"""Which problems a step trains on.

`draws.Draws`: in epochs, by the shares of a mixture, or by signal. `pass_rates`: the profile of a model
(curriculum.profile) and the pass rates that a curriculum learns during the run. `pass_rates` loads without torch.
"""
