"""Whether two trees are the same answer.

`comparison.Comparator` decides, cheapest check first; `rules` declares what the other files call of it. `relations`:
equations and inequalities. `structures`: lists, sets, tuples, matrices, cases. `parameters`: solutions with integer
parameters or arbitrary constants, and the bounds on them. `forms`: sums and integrals that are not evaluated.
"""
