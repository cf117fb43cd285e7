#!/bin/bash
# A sweep on Slurm: an executor on each node; the scheduler and the driver are on the first one.
# `rollstream help deploying` explains this file. Change what follows an EDIT.

# EDIT: nodes, cores and time. A job that runs out of time drains in its last three minutes, and is queued again.
#SBATCH --nodes=4
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --job-name=rollstream
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail
umask 077

# EDIT: the settings of the sweep. Its output is an object store, or a directory that all nodes share, as they share HOME.
sweep=$HOME/sweep.toml
# EDIT: the shards that a node works on at a time.
slots=4

host=$(hostname)
port=$((20000 + SLURM_JOB_ID % 10000))
address=grpc://$host:$port
certificates=$HOME/.rollstream-$SLURM_JOB_ID
code=1

end() {
    # Executors drain. Their answers are in the run before another job can go on with it.
    kill $(jobs -p) 2> /dev/null || true
    wait
    rm -rf "$certificates"
    if [ "$code" = 130 ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
}
trap end EXIT

# Other users reach the nodes, too: each job has certificates of its own.
rollstream cluster template certificates | sh -s "$certificates" "$host"
rollstream cluster scheduler --bind "0.0.0.0:$port" --cluster-tls "$certificates" &
scheduler=$!
until (: < "/dev/tcp/$host/$port") 2> /dev/null; do
    kill -0 "$scheduler"
    sleep 0.1
done

# A node that fails, or an executor that withdraws, leaves the others alone.
srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec rollstream cluster executor "$@" --name "$SLURMD_NODENAME"' executor \
    --scheduler "$address" --slots "$slots" --cluster-tls "$certificates" &
rollstream collect --config "$sweep" --resume --cluster "$address" \
    --cluster-slots $((SLURM_JOB_NUM_NODES * slots)) --cluster-tls "$certificates" &
driver=$!

# The signal ends a `wait`, but not the driver, which drains.
trap 'kill -TERM "$driver"' TERM
while
    code=0
    wait "$driver" || code=$?
    kill -0 "$driver" 2> /dev/null
do :; done
exit "$code"
