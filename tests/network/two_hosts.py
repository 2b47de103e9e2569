"""Two "hosts" on one machine: network and UTS namespaces joined by a cable of given delay and rate. Nothing leaves the machine.

Also a command: two_hosts.py DELAY_US MBIT mpirun …, for measurements by hand.
"""

import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

CABLE = os.environ.get("NETWORK_CABLE", "")


def why_not():
    """Why there can be no two hosts here; empty: there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for program in ("ip", "unshare", "taskset", "mpirun"):
        if not shutil.which(program):
            return f"needs {program}"
    if not pathlib.Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    name = f"pt{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    if made.returncode != 0:
        return "network namespaces are not allowed here: " + made.stderr.decode().strip()
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def environment_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


class TwoHosts:
    """Hosts node1 (10.88.0.1) and node2 (10.88.0.2), each on a core of its own where there are two."""

    numbers = itertools.count()

    def __init__(self, delay_us=50, mbit=1000, slots=1):
        number = next(TwoHosts.numbers)
        self.names = [f"pt{os.getpid()}-{number}{letter}" for letter in "ab"]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="two-hosts-"))
        self.cable = None
        try:
            self.connect(delay_us, mbit, slots)
        except BaseException:
            self.close()
            raise

    def connect(self, delay_us, mbit, slots):
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        self.cable = subprocess.Popen([CABLE, *self.names, str(delay_us), str(mbit)], stdout=subprocess.PIPE, text=True)
        if self.cable.stdout.readline() != "up\n":
            raise RuntimeError("there is no cable between the hosts")
        for number, name in enumerate(self.names, 1):
            subprocess.run(["ip", "-n", name, "addr", "add", f"10.88.0.{number}", "peer", f"10.88.0.{3 - number}", "dev", "wire0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "wire0", "mtu", "9000", "txqueuelen", "64", "up"], check=True)
        agent = self.folder / "agent"
        # What Open MPI calls in place of ssh: agent HOST COMMAND…
        agent.write_text("#!/bin/bash\nn=${1##*.}; shift\n" + "\n".join(
            f'if [ "$n" = {number} ]; then exec {" ".join(self.on(number))} bash -c "$*"; fi' for number in (1, 2)) + "\n")
        agent.chmod(0o755)
        (self.folder / "hosts").write_text(f"10.88.0.1 slots={slots}\n10.88.0.2 slots={slots}\n")

    def on(self, number):
        """The words before a command that runs on a host."""
        cores = sorted(os.sched_getaffinity(0))
        core = cores[(number - 1) % len(cores)]
        return ["ip", "netns", "exec", self.names[number - 1], "unshare", "-u", "sh", "-c",
                f"'hostname node{number}; exec taskset -c {core} \"$@\"'", "on"]

    def add_separate_networks(self):
        """Gives each host a network of its own, which the other one cannot reach; returns their name."""
        for number, name in enumerate(self.names, 1):
            subprocess.run(["ip", "-n", name, "tuntap", "add", "dev", "apart0", "mode", "tun"], check=True)
            subprocess.run(["ip", "-n", name, "addr", "add", f"10.89.{number}.1/24", "dev", "apart0"], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", "apart0", "up"], check=True)
        return "apart0"

    def mpirun(self, *arguments, network="wire0"):
        """The command that starts processes on both hosts, from host 1. They exchange messages over `network`."""
        words = [word.strip("'") if word.startswith("'") else word for word in self.on(1)]
        return [*words, "mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", str(self.folder / "agent"), "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", "wire0", "--hostfile", str(self.folder / "hosts"),
                *arguments]

    def launch(self, *arguments):
        """The same by `pipetrain launch`, and the environment that has its mpirun use these hosts."""
        words = [word.strip("'") if word.startswith("'") else word for word in self.on(1)]
        settings = {"plm_rsh_agent": str(self.folder / "agent"), "btl": "tcp,self", "btl_tcp_if_include": "wire0", "oob_tcp_if_include": "wire0"}
        environment = {f"OMPI_MCA_{name}": value for name, value in settings.items()}
        return [*words, arguments[0], "launch", "--hosts", str(self.folder / "hosts"), *arguments[1:]], \
            environment | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def training_on(self, number):
        """The training processes on a host."""
        found = subprocess.run(["ip", "netns", "pids", self.names[number - 1]], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split() if b"OMPI_COMM_WORLD_RANK=" in environment_of(pid)]

    def cut(self):
        self.cable.send_signal(signal.SIGSTOP)

    def mend(self):
        self.cable.send_signal(signal.SIGCONT)

    def kill_all_on(self, number):
        """Ends everything that runs on a host, as a power cut does."""
        found = subprocess.run(["ip", "netns", "pids", self.names[number - 1]], capture_output=True, text=True).stdout
        for pid in found.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        """Takes the hosts away with all that runs on them; returns the bytes that went each way."""
        sums = []
        if not self.names:
            return sums
        for number in (1, 2):
            self.kill_all_on(number)
        if self.cable:
            self.mend()
            self.cable.terminate()
            sums = self.cable.communicate()[0].split()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.names = []
        return [int(one) for one in sums]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


if __name__ == "__main__":
    hosts = TwoHosts(float(sys.argv[1]), float(sys.argv[2]))
    try:
        code = subprocess.run(hosts.mpirun(*sys.argv[4:])).returncode
    finally:
        print("bytes each way:", *hosts.close(), file=sys.stderr)
    sys.exit(code)
