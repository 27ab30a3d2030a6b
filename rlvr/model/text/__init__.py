"""Text and token ids.

rendering.Rendering      a prompt as ids, ids as text; replies of environments, cut to a number of tokens
chat_turns               how a reply is appended to the ids of a conversation
context                  the model's context length, and prompts that do not fit into it
"""
