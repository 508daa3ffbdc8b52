"""Many runs: a plan of work items, a window over them, and a ledger from which the work is resumed."""
