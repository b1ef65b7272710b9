"""The history of the tables: numbered, forward only, expand before contract.  Never edited once released."""
