# Completion of paiinit for fish. Generated: see CONTRIBUTING.md.

# Prints the command of paiinit on the command line, and the number of the word with which COMMAND begins (0: none yet).
function __paiinit_state
    set -l words (commandline -opc)
    set -l command run
    set -l value
    for i in (seq 2 (count $words))
        if set -q value[1]
            set -e value
            continue
        end
        switch $words[$i]
            case --
                echo $command
                math $i + 1
                return
            case '-*=*'
            case --role -role --index -index --rank -rank --size -size --peers -peers --slots -slots --job -job --attempt -attempt --system -system --port -port --exec -exec --timeout -timeout --check -check --preflight -preflight --ssh -ssh --leader-args -leader-args --worker-args -worker-args --ready -ready --first -first --secret-file -secret-file --authorized-keys -authorized-keys --people -people --network-hints -network-hints --rdma -rdma --grace -grace --signal -signal --until -until --restarts -restarts --restart-on -restart-on --no-restart-on -no-restart-on --restart-grace -restart-grace --hang -hang --rejoin -rejoin --spares -spares --restart-reset -restart-reset --progress-file -progress-file --log-format -log-format --log-level -log-level --report -report --state-dir -state-dir --ranks -ranks --root -root --html -html --format -format
                set value yes
            case '-*'
            case '*'
                if test $i -eq 2; and contains -- $words[2] run rsh each env check rdma install version status wait barrier hosts hostfile
                    set command $words[2]
                else
                    echo $command
                    echo $i
                    return
                end
        end
    end
    echo $command
    echo 0
end

# Succeeds if the word is for one of these commands of paiinit, not for COMMAND.
function __paiinit_in
    set -l state (__paiinit_state)
    test $state[2] -eq 0; and contains -- $state[1] $argv
end

function __paiinit_first
    test (count (commandline -opc)) -eq 1
end

# Completes COMMAND and its arguments for one of these commands of paiinit; of rsh, COMMAND follows HOST.
function __paiinit_command
    set -l state (__paiinit_state)
    set -l words (commandline -opc) (string escape -- (commandline -ct))
    contains -- $state[1] $argv; or return
    set -l start $state[2]
    if test $start -eq 0
        set start (count $words)
        string match -q -- '-*' (commandline -ct); and return
    end
    contains -- $state[1] rsh; and set start (math $start + 1)
    test $start -le (count $words); and complete -C (string join -- ' ' $words[$start..])
end

complete -c paiinit -f
complete -c paiinit -n '__paiinit_first' -a run -d 'wait for all ranks, then run COMMAND; the default command'
complete -c paiinit -n '__paiinit_first' -a rsh -d 'run a command or a shell on another rank, like ssh'
complete -c paiinit -n '__paiinit_first' -a each -d 'run COMMAND on every rank, exit with the highest status'
complete -c paiinit -n '__paiinit_first' -a env -d 'print what was detected about the job, and from which variables'
complete -c paiinit -n '__paiinit_first' -a check -d 'print what is wrong with this image and container, and what to do'
complete -c paiinit -n '__paiinit_first' -a rdma -d 'print the verbs devices and what is wrong with them'
complete -c paiinit -n '__paiinit_first' -a install -d 'copy paiinit itself to DIR, for another container'
complete -c paiinit -n '__paiinit_first' -a version -d 'print the versions of paiinit and Go'
complete -c paiinit -n '__paiinit_first' -a status -d 'print which ranks are present, which are missing, and why'
complete -c paiinit -n '__paiinit_first' -a wait -d 'wait until all ranks are present'
complete -c paiinit -n '__paiinit_first' -a barrier -d 'wait until every rank has called it with the same NAME'
complete -c paiinit -n '__paiinit_first' -a hosts -d 'print name:slots of the live ranks, for horovodrun'
complete -c paiinit -n '__paiinit_first' -a hostfile -d 'print the host list in the format of a launcher'
complete -c paiinit -a '(__paiinit_command run each check rsh)'
complete -c paiinit -n '__paiinit_in rsh' -a '(paiinit hosts 2>/dev/null | string replace -r ":.*" "")'
complete -c paiinit -n '__paiinit_in install' -a '(__fish_complete_directories)'
complete -c paiinit -n '__paiinit_in run' -l role -x -d 'role of this container, such as worker'
complete -c paiinit -n '__paiinit_in run' -l index -x -d 'index of this container within its role, from 0'
complete -c paiinit -n '__paiinit_in run' -l rank -x -d 'rank of this container within the job, from 0'
complete -c paiinit -n '__paiinit_in run' -l size -x -d 'number of containers of the job'
complete -c paiinit -n '__paiinit_in run' -l peers -x -d 'all containers: HOST[:PORT],... @FILE or dns:NAME'
complete -c paiinit -n '__paiinit_in run' -l slots -x -d 'number of processes that a launcher may start here'
complete -c paiinit -n '__paiinit_in run' -l job -x -d 'ID of the job, the same in all its containers'
complete -c paiinit -n '__paiinit_in run' -l attempt -x -d 'ID of this attempt, the same in all its containers'
complete -c paiinit -n '__paiinit_in run' -l system -x -d 'name of the scheduler, if the detected one is wrong'
complete -c paiinit -n '__paiinit_in run' -l port -x -d 'port, TCP and UDP'
complete -c paiinit -n '__paiinit_in run' -l exec -x -a 'rank0 all leader' -d 'who runs COMMAND: rank0, all, leader'
complete -c paiinit -n '__paiinit_in run' -l timeout -x -d 'wait for all ranks, 0 = forever'
complete -c paiinit -n '__paiinit_in run' -l require-same-launcher -d 'refuse ranks with different versions of mpirun'
complete -c paiinit -n '__paiinit_in run' -l check -x -a 'warn require off' -d 'differences: warn, require or off'
complete -c paiinit -n '__paiinit_in run' -l preflight -x -a '(__fish_complete_command)' -d 'shell command that must succeed on all ranks'
complete -c paiinit -n '__paiinit_in run' -l ssh -x -a 'own image' -d 'first ssh in PATH: own or image'
complete -c paiinit -n '__paiinit_in run' -l template -d 'replace words such as {rank} in arguments'
complete -c paiinit -n '__paiinit_in run' -l leader-args -x -d 'more arguments of COMMAND on rank 0'
complete -c paiinit -n '__paiinit_in run' -l worker-args -x -d 'more arguments of COMMAND on other ranks'
complete -c paiinit -n '__paiinit_in run' -l ready -x -d 'start others after tcp:, http: or file: of rank 0'
complete -c paiinit -n '__paiinit_in run' -l first -x -a '(__fish_complete_command)' -d 'shell command on rank 0 before the others'
complete -c paiinit -n '__paiinit_in run' -l secret-file -r -F -d 'file with the job\'s secret (or PAIINIT_SECRET)'
complete -c paiinit -n '__paiinit_in run' -l insecure -d 'no secret: every host that reaches the port can join'
complete -c paiinit -n '__paiinit_in run' -l http -d 'the port also answers /livez, /readyz and /metrics'
complete -c paiinit -n '__paiinit_in run' -l authorized-keys -r -F -d 'keys of people who may log in from outside'
complete -c paiinit -n '__paiinit_in run' -l people -x -a 'job local' -d 'where they may run: job or local'
complete -c paiinit -n '__paiinit_in run' -l network-hints -x -a 'auto off' -d 'set launchers\' network: auto or off'
complete -c paiinit -n '__paiinit_in run' -l rdma -x -a 'auto require off' -d 'verbs devices: auto, require or off'
complete -c paiinit -n '__paiinit_in run' -l grace -x -d 'time from SIGTERM to SIGKILL, 0 = none'
complete -c paiinit -n '__paiinit_in run' -l signal -x -a 'leader group' -d 'what gets signals: leader or group'
complete -c paiinit -n '__paiinit_in run' -l until -x -d 'roles that end the job (with --exec all), or rank0'
complete -c paiinit -n '__paiinit_in run' -l allow-partial -d 'accept a launcher that used too few hosts'
complete -c paiinit -n '__paiinit_in run' -l restarts -x -d 'in-place restarts, or unlimited'
complete -c paiinit -n '__paiinit_in run' -l restart-on -x -a 'any lost' -d 'restart on any failure or on lost'
complete -c paiinit -n '__paiinit_in run' -l no-restart-on -x -d 'no restart after these, such as 2,93'
complete -c paiinit -n '__paiinit_in run' -l restart-grace -x -d 'SIGTERM to SIGKILL before a restart'
complete -c paiinit -n '__paiinit_in run' -l hang -x -d 'fail after so long without progress'
complete -c paiinit -n '__paiinit_in run' -l rejoin -x -d 'time for a lost container to return'
complete -c paiinit -n '__paiinit_in run' -l spares -x -d 'last containers, which replace lost ones'
complete -c paiinit -n '__paiinit_in run' -l restart-reset -x -d 'a run this long renews the restarts'
complete -c paiinit -n '__paiinit_in run' -l progress-file -r -F -d 'file whose change is progress, too'
complete -c paiinit -n '__paiinit_in run' -l log-format -x -a 'text logfmt json' -d 'text, logfmt or json'
complete -c paiinit -n '__paiinit_in run' -l log-level -x -a 'info debug warn error' -d 'info, debug, warn or error'
complete -c paiinit -n '__paiinit_in run' -l report -x -a '(__fish_complete_directories)' -d 'where rank 0 leaves a report at the end'
complete -c paiinit -n '__paiinit_in run' -l state-dir -x -a '(__fish_complete_directories)' -d 'host lists and sockets'
complete -c paiinit -n '__paiinit_in run' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in rsh' -l secret-file -r -F -d 'file with the job\'s secret'
complete -c paiinit -n '__paiinit_in rsh' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in each' -l ranks -x -d 'LIST of ranks and host names: 0,3-5,worker-7'
complete -c paiinit -n '__paiinit_in each' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in env' -l role -x -d 'role of this container, such as worker'
complete -c paiinit -n '__paiinit_in env' -l index -x -d 'index of this container within its role, from 0'
complete -c paiinit -n '__paiinit_in env' -l rank -x -d 'rank of this container within the job, from 0'
complete -c paiinit -n '__paiinit_in env' -l size -x -d 'number of containers of the job'
complete -c paiinit -n '__paiinit_in env' -l peers -x -d 'all containers: HOST[:PORT],... @FILE or dns:NAME'
complete -c paiinit -n '__paiinit_in env' -l slots -x -d 'number of processes that a launcher may start here'
complete -c paiinit -n '__paiinit_in env' -l job -x -d 'ID of the job, the same in all its containers'
complete -c paiinit -n '__paiinit_in env' -l attempt -x -d 'ID of this attempt, the same in all its containers'
complete -c paiinit -n '__paiinit_in env' -l system -x -d 'name of the scheduler, if the detected one is wrong'
complete -c paiinit -n '__paiinit_in env' -l port -x -d 'port, TCP and UDP'
complete -c paiinit -n '__paiinit_in env' -l json -d 'print JSON'
complete -c paiinit -n '__paiinit_in env' -l export -d 'print the variables that a command would get, for a shell'
complete -c paiinit -n '__paiinit_in env' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in check' -l role -x -d 'role of this container, such as worker'
complete -c paiinit -n '__paiinit_in check' -l index -x -d 'index of this container within its role, from 0'
complete -c paiinit -n '__paiinit_in check' -l rank -x -d 'rank of this container within the job, from 0'
complete -c paiinit -n '__paiinit_in check' -l size -x -d 'number of containers of the job'
complete -c paiinit -n '__paiinit_in check' -l peers -x -d 'all containers: HOST[:PORT],... @FILE or dns:NAME'
complete -c paiinit -n '__paiinit_in check' -l slots -x -d 'number of processes that a launcher may start here'
complete -c paiinit -n '__paiinit_in check' -l job -x -d 'ID of the job, the same in all its containers'
complete -c paiinit -n '__paiinit_in check' -l attempt -x -d 'ID of this attempt, the same in all its containers'
complete -c paiinit -n '__paiinit_in check' -l system -x -d 'name of the scheduler, if the detected one is wrong'
complete -c paiinit -n '__paiinit_in check' -l port -x -d 'port, TCP and UDP'
complete -c paiinit -n '__paiinit_in check' -l exec -x -a 'rank0 all leader' -d 'who runs COMMAND: rank0, all, leader'
complete -c paiinit -n '__paiinit_in check' -l timeout -x -d 'wait for all ranks, 0 = forever'
complete -c paiinit -n '__paiinit_in check' -l require-same-launcher -d 'refuse ranks with different versions of mpirun'
complete -c paiinit -n '__paiinit_in check' -l check -x -a 'warn require off' -d 'differences: warn, require or off'
complete -c paiinit -n '__paiinit_in check' -l preflight -x -a '(__fish_complete_command)' -d 'shell command that must succeed on all ranks'
complete -c paiinit -n '__paiinit_in check' -l ssh -x -a 'own image' -d 'first ssh in PATH: own or image'
complete -c paiinit -n '__paiinit_in check' -l template -d 'replace words such as {rank} in arguments'
complete -c paiinit -n '__paiinit_in check' -l leader-args -x -d 'more arguments of COMMAND on rank 0'
complete -c paiinit -n '__paiinit_in check' -l worker-args -x -d 'more arguments of COMMAND on other ranks'
complete -c paiinit -n '__paiinit_in check' -l ready -x -d 'start others after tcp:, http: or file: of rank 0'
complete -c paiinit -n '__paiinit_in check' -l first -x -a '(__fish_complete_command)' -d 'shell command on rank 0 before the others'
complete -c paiinit -n '__paiinit_in check' -l secret-file -r -F -d 'file with the job\'s secret (or PAIINIT_SECRET)'
complete -c paiinit -n '__paiinit_in check' -l insecure -d 'no secret: every host that reaches the port can join'
complete -c paiinit -n '__paiinit_in check' -l http -d 'the port also answers /livez, /readyz and /metrics'
complete -c paiinit -n '__paiinit_in check' -l authorized-keys -r -F -d 'keys of people who may log in from outside'
complete -c paiinit -n '__paiinit_in check' -l people -x -a 'job local' -d 'where they may run: job or local'
complete -c paiinit -n '__paiinit_in check' -l network-hints -x -a 'auto off' -d 'set launchers\' network: auto or off'
complete -c paiinit -n '__paiinit_in check' -l rdma -x -a 'auto require off' -d 'verbs devices: auto, require or off'
complete -c paiinit -n '__paiinit_in check' -l grace -x -d 'time from SIGTERM to SIGKILL, 0 = none'
complete -c paiinit -n '__paiinit_in check' -l signal -x -a 'leader group' -d 'what gets signals: leader or group'
complete -c paiinit -n '__paiinit_in check' -l until -x -d 'roles that end the job (with --exec all), or rank0'
complete -c paiinit -n '__paiinit_in check' -l allow-partial -d 'accept a launcher that used too few hosts'
complete -c paiinit -n '__paiinit_in check' -l restarts -x -d 'in-place restarts, or unlimited'
complete -c paiinit -n '__paiinit_in check' -l restart-on -x -a 'any lost' -d 'restart on any failure or on lost'
complete -c paiinit -n '__paiinit_in check' -l no-restart-on -x -d 'no restart after these, such as 2,93'
complete -c paiinit -n '__paiinit_in check' -l restart-grace -x -d 'SIGTERM to SIGKILL before a restart'
complete -c paiinit -n '__paiinit_in check' -l hang -x -d 'fail after so long without progress'
complete -c paiinit -n '__paiinit_in check' -l rejoin -x -d 'time for a lost container to return'
complete -c paiinit -n '__paiinit_in check' -l spares -x -d 'last containers, which replace lost ones'
complete -c paiinit -n '__paiinit_in check' -l restart-reset -x -d 'a run this long renews the restarts'
complete -c paiinit -n '__paiinit_in check' -l progress-file -r -F -d 'file whose change is progress, too'
complete -c paiinit -n '__paiinit_in check' -l log-format -x -a 'text logfmt json' -d 'text, logfmt or json'
complete -c paiinit -n '__paiinit_in check' -l log-level -x -a 'info debug warn error' -d 'info, debug, warn or error'
complete -c paiinit -n '__paiinit_in check' -l report -x -a '(__fish_complete_directories)' -d 'where rank 0 leaves a report at the end'
complete -c paiinit -n '__paiinit_in check' -l state-dir -x -a '(__fish_complete_directories)' -d 'host lists and sockets'
complete -c paiinit -n '__paiinit_in check' -l json -d 'print JSON'
complete -c paiinit -n '__paiinit_in check' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in rdma' -l json -d 'print JSON'
complete -c paiinit -n '__paiinit_in rdma' -l all -d 'print one table for all ranks of the running job'
complete -c paiinit -n '__paiinit_in rdma' -l root -x -a '(__fish_complete_directories)' -d 'DIR with sys/, dev/ and proc/ of another container'
complete -c paiinit -n '__paiinit_in rdma' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in install' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in version' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in status' -l json -d 'print JSON'
complete -c paiinit -n '__paiinit_in status' -l drift -d 'print what differs between the ranks; rank 0 knows it'
complete -c paiinit -n '__paiinit_in status' -l watch -d 'show every change until the job ends'
complete -c paiinit -n '__paiinit_in status' -l all -d 'also print one row for each rank'
complete -c paiinit -n '__paiinit_in status' -l timeline -f -d 'print what each rank did, and when; [=trace]: JSON for ui.perfetto.dev'
complete -c paiinit -n '__paiinit_in status' -l html -r -F -d 'write a page about ranks and timeline to FILE'
complete -c paiinit -n '__paiinit_in status' -l ready -d 'exit with 0 if all ranks run their command, else 1, and say why'
complete -c paiinit -n '__paiinit_in status' -l live -d 'exit with 0 if paiinit answers, else 1'
complete -c paiinit -n '__paiinit_in status' -l state-dir -x -a '(__fish_complete_directories)' -d 'state directory of the paiinit to ask (or PAIINIT_STATE_DIR)'
complete -c paiinit -n '__paiinit_in status' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in wait' -l timeout -x -d 'give up after this time with status 75'
complete -c paiinit -n '__paiinit_in wait' -l state-dir -x -a '(__fish_complete_directories)' -d 'state directory of the paiinit to ask (or PAIINIT_STATE_DIR)'
complete -c paiinit -n '__paiinit_in wait' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in barrier' -l timeout -x -d 'give up after this time with status 75'
complete -c paiinit -n '__paiinit_in barrier' -l state-dir -x -a '(__fish_complete_directories)' -d 'state directory of the paiinit to ask (or PAIINIT_STATE_DIR)'
complete -c paiinit -n '__paiinit_in barrier' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in hosts' -l state-dir -x -a '(__fish_complete_directories)' -d 'state directory of the paiinit to ask (or PAIINIT_STATE_DIR)'
complete -c paiinit -n '__paiinit_in hosts' -l help -d 'show this help'
complete -c paiinit -n '__paiinit_in hostfile' -l format -x -a 'openmpi hydra horovod deepspeed' -d 'openmpi, hydra, horovod, deepspeed'
complete -c paiinit -n '__paiinit_in hostfile' -l state-dir -x -a '(__fish_complete_directories)' -d 'state directory of the paiinit to ask (or PAIINIT_STATE_DIR)'
complete -c paiinit -n '__paiinit_in hostfile' -l help -d 'show this help'
