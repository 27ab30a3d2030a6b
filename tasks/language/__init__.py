"""Published questions in words: choices, instructions, logic."""
