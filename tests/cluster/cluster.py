"""A SLURM of one node with fake GPUs: real daemons, no init system, no cgroups, no database.

The host is login node, controller and compute node at once. It is set up like the clusters that
users have in what matters here: limits are enforced at submission, GPUs are handed out one by one
and jobs are requeued. It needs root and the packages of `tests/cluster/install`.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

GPUS = 2
# The compiled-in place. Snakemake's job step drops SLURM_CONF before it calls srun.
ETC = Path("/etc/slurm")
_PATIENCE_S = 60
# Until a job is in the state that a test waits for; there may be many before it.
_JOB_PATIENCE_S = 900

_SLURM_CONF = """\
ClusterName=aerie
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that was preempted waits until its credential has expired, two minutes by default.
AuthInfo=socket={root}/munge/socket,cred_expire=15
# Nobody but this machine.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/jobs.log
MpiDefault=none
ReturnToService=2
# Jobs that have ended are looked at to the end of the tests.
MinJobAge=36000
# A machine that is busy with the jobs answers late.
MessageTimeout=60
KillWait=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# What never fits is refused when it is submitted, not left to wait.
EnforcePartLimits=ALL
DefMemPerCPU=512
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={mem_mb} Gres=gpu:fake:{gpus}
PartitionName=cpu Nodes={host} Default=YES MaxTime=60 State=UP
PartitionName=gpu Nodes={host} MaxTime=60 State=UP
"""
_GRES_CONF = "NodeName={host} Name=gpu Type=fake File={root}/dev/gpu[0-{last}]\n"


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it: its id, its rule with wildcards, and its state."""

    id: str
    rule: str
    state: str


class Cluster:
    """Starts on entry, stops on exit; `root` holds keys, logs, state and configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = socket.gethostname().split(".")[0]

    def __enter__(self) -> "Cluster":
        for name in ("munge", "state", "spool", "dev"):
            (self.root / name).mkdir(parents=True)
        # munged insists on folders that only their owner may write to.
        for folder in (self.root, self.root / "munge"):
            folder.chmod(0o755)
        self._configure()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel()
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid"):
            _stop(self.root / name)
        # With the plugin installed, every call of Snakemake would wait for the controller.
        for name in ("slurm.conf", "gres.conf"):
            link = ETC / name
            if link.is_symlink() and link.readlink().is_relative_to(self.root):
                link.unlink()

    def jobs(self) -> list[Job]:
        """Jobs of Snakemake that the controller remembers, the oldest first."""
        lines = command("squeue", "--noheader", "--states=all", "--sort=i", "--format=%i|%k|%T")
        fields = [line.split("|") for line in lines.splitlines()]
        return [
            Job(number, rule.removeprefix("rule_").replace("_wildcards_", " "), state)
            for number, rule, state in fields
        ]

    def wait_for(self, rule: str, *states: str, after: str = "0") -> Job:
        """The first job of `rule` younger than job `after` that is in one of `states`."""
        end = time.monotonic() + _JOB_PATIENCE_S
        while time.monotonic() < end:
            for job in self.jobs():
                if job.rule.startswith(rule) and int(job.id) > int(after) and job.state in states:
                    return job
            time.sleep(0.2)
        raise TimeoutError(f"no job of {rule} in {states}:\n{self.describe()}")

    def kill(self, job: Job) -> None:
        """Kill the script that a job runs, as the kernel does when memory is short."""
        self._signal(job, signal.SIGKILL)

    def stop(self, job: Job) -> None:
        """Make the script that a job runs hang."""
        self._signal(job, signal.SIGSTOP)

    def state(self, job: Job) -> str:
        return command("squeue", "--noheader", "--states=all", f"--job={job.id}", "-o%T").strip()

    def minutes(self, job: Job) -> int:
        """The time limit of a job."""
        limit = command("squeue", "--noheader", "--states=all", f"--job={job.id}", "-o%l").strip()
        return int(limit.split(":")[-2])

    def drain(self) -> None:
        """Let no further job start."""
        command("scontrol", "update", f"NodeName={self.host}", "State=DRAIN", "Reason=test")

    def resume(self) -> None:
        command("scontrol", "update", f"NodeName={self.host}", "State=RESUME")

    def describe(self) -> str:
        """What a person needs who looks for a fault."""
        logs = [
            f"== {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-4000:]}"
            for path in sorted(self.root.glob("*.log"))
        ]
        return "\n".join([*map(str, self.jobs()), *logs])

    def _cancel(self) -> None:
        """End what still runs, after a test that failed: jobs outlive the daemons."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            done = subprocess.run(
                ["squeue", "--noheader", "--format=%i"], capture_output=True, text=True, check=False
            )
            if not done.stdout.split():
                return
            subprocess.run(["scancel", *done.stdout.split()], capture_output=True, check=False)
            time.sleep(0.5)

    def _signal(self, job: Job, number: signal.Signals) -> None:
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            # The step has Snakemake in it before it has the script.
            if found := self._scripts(job):
                for process in found:
                    os.kill(process, number)
                return
            time.sleep(0.1)
        raise TimeoutError(f"{job} runs no script:\n{self.describe()}")

    @staticmethod
    def _scripts(job: Job) -> list[int]:
        """Ids of the processes of Aerie's scripts inside a job."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            runs = len(arguments) > 1 and arguments[1].startswith(b"scripts/")
            if runs and f"SLURM_JOB_ID={job.id}".encode() in environment:
                found.append(int(folder.name))
        return found

    def _configure(self) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        ports = _free_ports(2)
        values = {
            "root": self.root,
            "host": self.host,
            "controller_port": ports[0],
            "node_port": ports[1],
            "cpus": os.cpu_count(),
            "mem_mb": memory - 512,
            "gpus": GPUS,
            "last": GPUS - 1,
        }
        ETC.mkdir(exist_ok=True)
        for name, template in (("slurm.conf", _SLURM_CONF), ("gres.conf", _GRES_CONF)):
            link = ETC / name
            if link.exists():
                raise FileExistsError(f"{link} exists: these tests start a SLURM of their own")
            link.unlink(missing_ok=True)
            (self.root / name).write_text(template.format(**values), encoding="utf-8")
            link.symlink_to(self.root / name)
        for number in range(GPUS):
            # SLURM wants character devices. These are the null device under another name.
            os.mknod(self.root / f"dev/gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        key = self.root / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def _start(self) -> None:
        munge = self.root / "munge"
        places = (("key", "key"), ("socket", "socket"), ("pid", "pid"), ("log", "log"))
        options = [f"--{option}-file={munge / name}" for option, name in places]
        options[1] = f"--socket={munge / 'socket'}"
        command("munged", "--force", *options, f"--seed-file={munge / 'seed'}")
        command("slurmctld", "-c")
        command("slurmd", "-c")
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            done = subprocess.run(
                ["sinfo", "--noheader", "--partition=cpu", "--format=%T"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.stdout.strip() == "idle":
                return
            time.sleep(0.2)
        raise TimeoutError(f"SLURM did not start:\n{self.describe()}")


def command(*arguments: str) -> str:
    """What a command of SLURM prints; its own words if it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def installed() -> bool:
    """Whether the daemons are there and may be started."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch")
    return os.geteuid() == 0 and all(map(shutil.which, programs))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for open_socket in sockets:
        open_socket.bind(("127.0.0.1", 0))
    ports = [int(open_socket.getsockname()[1]) for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports


def _stop(pid_file: Path) -> None:
    """End a daemon and wait for it: the controller saves its state first."""
    if not pid_file.exists():
        return
    number = int(pid_file.read_text(encoding="utf-8"))
    end = time.monotonic() + _PATIENCE_S
    try:
        os.kill(number, signal.SIGTERM)
        while time.monotonic() < end:
            os.kill(number, 0)
            time.sleep(0.1)
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return
