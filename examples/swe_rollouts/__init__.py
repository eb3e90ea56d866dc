"""The main job: rollouts of real software tasks on real containers, graded where the agent never was.

`python -m examples.swe_rollouts` starts the platform, imports the layers, runs every task with every
scripted agent at once, and writes a report. Read `rollout.py` for the trainer's side of one rollout,
`grading.py` for what makes a reward trustworthy, `agents.py` for what is thrown at it.
"""
