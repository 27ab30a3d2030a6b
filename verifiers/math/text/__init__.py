"""What an answer says as text.

`normal`: one spelling for equal texts, choices, dates, synonyms. `sentences`: the value that a sentence states.
`formulas`: substances and propositions. `readings`: the trees that a text may mean; references. `repetition`: answers
that repeat the prompt or leave its arithmetic undone.
"""
