"""The checks of learned facts: the user's own words must say a fact."""
