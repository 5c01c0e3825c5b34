# First program of a container: root, with no right but to kill. It uses nothing but builtins, so
# that it works where a fork bomb leaves no process to start. Requests are lines on stdin, each gets
# one line back. stdin ends when the runner ends, however it does, and then the container ends.

look() { # at $folder: sets $parent; fails when the process is gone or a zombie
    while read -r key value _; do
        case $key in
        State:) case $value in Z* | X*) return 1 ;; esac ;;
        PPid:) parent=$value && return 0 ;;
        esac
    done <"$folder/status"
    return 1
}

count() { # answers with the number of live processes, without init and this one
    answer=0
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        [ "$pid" = 1 ] || [ "$pid" = $$ ] || { look && answer=$((answer + 1)); }
    done
}

end() { # the tree below $1, which adopts its orphans; what is stopped cannot fork its way out
    tree=" $1 " grew=1
    kill -STOP "$1"
    while [ "$grew" ]; do
        grew=
        for folder in /proc/[0-9]*; do
            pid=${folder#/proc/}
            case $tree in *" $pid "*) continue ;; esac
            look || continue
            case $tree in *" $parent "*) kill -STOP "$pid" && tree="$tree$pid " grew=1 ;; esac
        done
    done
    kill -KILL $tree
}

find_value() { # of key $1 in a file that is there: sets $value, else leaves it
    for file in "$2" "$3"; do
        [ -r "$file" ] || continue
        while read -r key number; do [ "$key" = "$1" ] && value=$number; done <"$file"
    done
}

hits() { # answers with how many programs were killed for memory, and how many processes refused
    value=0
    find_value oom_kill /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control
    answer=$value value=0
    find_value max /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events
    answer="$answer $value"
}

exec 2>/dev/null # processes that end while they are looked at
echo ready
answer=
while read -r verb argument; do
    case $verb in
    count) count ;;
    end) end "$argument" ;;
    endall) kill -KILL -1 ;;
    hits) hits ;;
    esac
    echo "$answer"
    answer=
done
