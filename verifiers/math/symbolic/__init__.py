"""What sympy decides, where rules and numbers leave an answer open.

`conversion`: trees to sympy objects and back, with bounds on their size. `evaluation`: integrals, sums, limits and
derivatives by sympy or by quadrature, with a limit on the time. sympy is imported when it is needed.
"""
