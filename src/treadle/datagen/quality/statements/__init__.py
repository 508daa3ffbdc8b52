"""The statements of an answer, the evidence of a conversation, and the rules that hold one against the other."""
