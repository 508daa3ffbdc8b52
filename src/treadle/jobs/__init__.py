"""Many runs for one purpose: the window, the ledger and the limits that generations and rollouts share."""
