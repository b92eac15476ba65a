# Owns one Redis server, and outlives the process that asked for it just long enough to clean up.
#
# $1: where to make the server's directory; the rest: the server's command line, without directory and port.
# Prints the directory; then, for each line read, the pid of the server after obeying (empty: none runs).
# When the other end of standard input closes, the server is killed and its directory removed.

# A signal meant for the tests must not keep this from cleaning up, nor must a reader that is gone.
trap '' HUP INT TERM PIPE

dir=$(mktemp -d "$1/limiter-redis.XXXXXX") && cd "$dir" || exit 1
dir=$(pwd -P)
shift
pid=

end() {
    if [ -n "$pid" ]; then
        kill -KILL "$pid"
        wait "$pid"
        pid=
    fi
}

echo "$dir"
while read -r order port; do
    case $order in
        start)
            end
            # Emptied here, for the one in the background may do so only after the log has been looked at.
            : >"$dir/redis.log"
            # None of the three streams may be one of ours: the server would hold our pipes open.
            "$@" --dir "$dir" --port "$port" </dev/null >>"$dir/redis.log" 2>&1 &
            pid=$!
            ;;
        kill) end ;;
        pause) kill -STOP "$pid" ;;
        resume) kill -CONT "$pid" ;;
    esac
    echo "$pid"
done

end
cd / && rm -rf "$dir"
