"""Batches and jobs: thousands of sandboxes in one call, and what is done to all sandboxes of a job at once.

A batch is a template, a count and overrides. Core stores it as an order in the stream JOBS and as a state in
the bucket `jobs`; whichever core takes the order carries it out, and another one goes on where a killed one
stopped. The id of each sandbox follows from the batch's operation id, its number and its node, and a node
answers a repeated order from what it did already: nothing is made twice (docs/adr/0012-batches.md).

| file | what |
|---|---|
| `messages`, `runs` | what is said, and sets of numbers as ranges |
| `template` | strict parsing of template and overrides |
| `plan` | which number lies where and how far it is: pure |
| `store`, `queue` | the state by compare-and-set; the work queue |
| `execute`, `charging` | carrying one batch out; what it takes of quotas |
| `service` | what core answers: batch create, job verbs |
| `node`, `members` | the node's side of batches, and of what is done to a job |
"""
