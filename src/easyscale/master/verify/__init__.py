"""`easyscale verify`: the same script under stock DDP and under many plans, compared step by step.

`trials` says what is run, `stage` runs it, `compare` finds the first global step that differs, `findings` the first
operator, `causes` the reason where it is a known one, `certificate` what there is to show. Knows runs by their messages
and trace files only: no torch here.
"""
