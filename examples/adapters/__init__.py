"""opendsec under other people's harnesses: each module is an adapter, for a package that need not be here."""
