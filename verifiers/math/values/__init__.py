"""Expression trees and their values.

`tree`: the nodes. `units`: the table of units. `exact`: rational numbers, and residues of huge ones. `numeric`: floats
and long decimals with a bound on their error. `quadrature`: integrals and series as numbers. `identity`: whether two
expressions are equal as functions. `sets`: sets of reals and solved inequalities. `matrices`: matrix arithmetic, and
products whose order counts.
"""
