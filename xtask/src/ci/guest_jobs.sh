# Functions of the script that runs the jobs in the virtual machine.
failed=0
began=$(date +%s)

# Says how a job ended: its name, then the verdict.
ended() { echo "rxe: $1: $2, $(($(date +%s) - began)) s after the beginning"; }

# Prints where every thread that belongs to a program is in the kernel, and the kernel's last messages.
print_threads() {
    for thread in /proc/[0-9]*/task/[0-9]*; do
        stack=$(cat "$thread/stack" 2>/dev/null)
        # A thread of the kernel has no command line. Files in /proc have no size.
        [ -n "$(tr -d '\0' <"${thread%/task/*}/cmdline" 2>/dev/null)" ] && echo "$thread $(cat "$thread/comm"):" $stack
    done
    dmesg | tail -n 30
}

# within SECONDS COMMAND…: runs a command and stops it when its time is up. A command that cannot be killed
# hangs in the kernel: then the whole machine is stopped, because nothing that follows would tell anything.
within() {
    limit=$1
    shift
    (
        sleep "$limit" >/dev/null &
        sleep=$!
        trap 'kill "$sleep"; exit' TERM
        wait "$sleep"
        echo "rxe: $limit s are over; the threads are here:"
        print_threads
        sleep 20
        echo "rxe: the job cannot be killed: FAILED, the machine is stopped"
        echo b >/proc/sysrq-trigger
    ) &
    watcher=$!
    timeout --kill-after=10 "$((limit + 5))" "$@"
    status=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    return "$status"
}
