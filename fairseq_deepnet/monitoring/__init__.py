"""What a training does inside, measured from outside: the model does not know it is watched.

Everything hangs on fairseq's trainer (`trainer`): instruments are armed for the update that is due
and leave nothing behind after it.
"""
