"""How a run that nobody closes is broken off, without threads or a network."""

from pliant.engine.shutdown import Shutdown


class Recorder:
    """A comm, and threads that talk through it: they write down what is asked of them."""

    def __init__(self):
        self.asked = []

    def stop(self):
        self.asked.append("stop")

    def join(self, timeout_s):
        self.asked.append("join")
        assert timeout_s >= 0

    def hang_up(self):
        self.asked.append("hang up")

    def close(self):
        self.asked.append("close")


def test_what_has_begun_may_end_before_the_connections_break():
    recorder = Recorder()
    shutdown = Shutdown(recorder)
    shutdown.add(recorder)
    shutdown.break_off()
    shutdown.close()
    assert recorder.asked == ["stop", "join", "hang up", "join", "close"]
    shutdown.break_off()
    shutdown.close()
    assert len(recorder.asked) == 5, "it ends once"
