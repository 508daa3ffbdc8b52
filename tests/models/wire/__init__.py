"""Each dialect as a server speaks it, for the tests that run over all of them."""
