"""What only a machine with unified cgroups can show; `make test-vm` has one. Elsewhere these are skipped."""
