"""Figures of every part: plain numbers where the work is done, made into metrics when somebody looks.

`names` has every metric, `figures` what the hot path counts, `parts` what runs in this process, `collect`
turns all of it into samples, `text` those into a page, `serve` answers `/metrics` and `/healthz`. Only `text`
needs prometheus-client.
"""
