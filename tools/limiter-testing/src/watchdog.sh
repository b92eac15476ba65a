# Owns one Redis server, and removes it after the end of the test process.
#
# $1: the parent of the server's directory; further arguments: the command line of the server,
# without directory and port. Prints the directory; then, after each command, the pid of the server
# (empty if none runs). When the other end of standard input closes, the server is killed and its
# directory is removed.

# Neither a signal to the tests nor a closed reader may prevent the removal.
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
while read -r command port; do
    case $command in
        start)
            end
            # Emptied here: the background process may empty it after a test has read it.
            : >"$dir/redis.log"
            # The server must not inherit a stream of this shell: it would keep the pipe open.
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
