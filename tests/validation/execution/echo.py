"""Answers every number with its double; "sleep" starts a child and says nothing more, "end" ends."""

import json
import os
import subprocess
import time

from validation.execution.child import die_with_parent, private_streams, say

requests, replies = private_streams()
die_with_parent()
for line in requests:
    asked = json.loads(line)
    print("noise of a kernel")
    if asked == "sleep":
        say(replies, subprocess.Popen(["sleep", "1000"]).pid)
        time.sleep(1000)
    if asked == "end":
        os._exit(5)
    say(replies, 2 * asked)
