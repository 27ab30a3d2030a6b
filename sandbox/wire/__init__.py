"""What crosses between tests and program: plain values and numbers of objects.

`values` encodes and decodes them, within bounds. `service` answers calls in the program's process; `proxies` are the
functions, classes and objects that test code sees in their place.
"""
