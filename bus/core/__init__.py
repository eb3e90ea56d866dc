"""Core: admission, claims, placement and jobs. Any number of them share one queue group (`service`)."""
