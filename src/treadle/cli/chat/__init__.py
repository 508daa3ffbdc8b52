"""`treadle chat`: a conversation, in which each line of input is a turn of a session."""
