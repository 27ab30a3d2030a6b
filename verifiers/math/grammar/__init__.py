"""From the text of an answer to its tree.

`lex` cuts the text into tokens, `parse` reads them by precedence. The parser keeps its place in `cursor` and calls
`operands` (numbers, names, brackets), `calculus` (sums, integrals, limits) and `affixes` (words and units around a
value); `meaning` says what parsed items mean together. `vocabulary` has the words.
"""
